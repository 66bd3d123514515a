#include "gradient_applier.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/update_check.hpp>
#include <tutti/kernels/fold.hpp>

#include "multiples.hpp"

namespace tutti {

void validate(const StalenessOptions& options) {
  const auto refuse = [](const char* name, double value) {
    if (!(value >= 0) || !std::isfinite(value))
      throw UsageError(fmt::format("{}: expected a number from 0 on, found {}", name, value));
  };
  refuse("rate_exponent", options.rate_exponent);
  refuse("delay_compensation", options.delay_compensation);
}

namespace detail {
namespace {

void multiply(ParameterSet& set, double factor) {
  if (factor == 1) return;
  for (NamedArray& array : set) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      for (T& value : array.values<T>()) value = multiple(value, factor);
    });
  }
}

void add_to(ParameterSet& sum, const ParameterSet& set) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    fold(ReduceOp::sum, sum[i].type(), sum[i].bytes().data(), sum[i].bytes().data(), set[i].bytes().data(),
         sum[i].length());
}

// Whether what multiply() and add_to() would make of them is finite.
bool adds_up(const ParameterSet& one, double share, const ParameterSet& other, double other_share) {
  const auto is_good = [&](const NamedArray& a, const NamedArray& b) {
    return dispatch(a.type(), [&]<typename T>(std::type_identity<T>) {
      bool is_finite = true;
      if constexpr (!std::is_integral_v<T>) {
        const std::span<const T> x = a.values<T>();
        const std::span<const T> y = b.values<T>();
        for (std::size_t i = 0; i < x.size(); ++i) {
          const T scaled = multiple(x[i], share);
          const T added = multiple(y[i], other_share);
          if constexpr (std::is_floating_point_v<T>)
            is_finite &= std::isfinite(scaled + added);
          else
            is_finite &= std::isfinite(T::from_float(scaled.to_float() + added.to_float()).to_float());
        }
      }
      return is_finite;
    });
  };
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (!is_good(one[i], other[i])) return false;
  }
  return true;
}

std::int64_t oldest_of(const GoodGradients& gradients) {
  const auto oldest = gradients.versions.upper_bound(GoodGradients::kNoVersion);
  return oldest == gradients.versions.end() ? GoodGradients::kNoVersion : oldest->first;
}

std::int64_t staleness_of(std::int64_t version, std::int64_t now) {
  return version == GoodGradients::kNoVersion ? 0 : std::max<std::int64_t>(0, now - version);
}

// A copy in the order of the model, where names, shapes and types are its.
std::shared_ptr<const ParameterSet> in_order_of(const ParameterSet& expected, const ParameterSet& found) {
  const auto is_there = [&](const NamedArray& its) {
    const NamedArray* array = found.find(its.name());
    return array != nullptr && array->layout() == its.layout();
  };
  if (found.size() != expected.size() || !std::ranges::all_of(expected, is_there))
    throw UsageError(fmt::format("these gradients are not of this model: {}", expected.layout_difference(found)));
  ParameterSet set;
  for (const NamedArray& its : expected) set.add(its.layout(), found.at(its.name()).bytes());
  return std::make_shared<const ParameterSet>(std::move(set));
}

void refuse_no_factor(const char* name, double factor) {
  if (!(factor >= 0) || !std::isfinite(factor))
    throw UsageError(fmt::format("{}: expected a number from 0 on, found {}", name, factor));
}

}  // namespace

void merge_gradients(GoodGradients& newest, const GoodGradients& added) {
  const bool count_alike = newest.weight == added.weight && newest.rate_factor == added.rate_factor;
  const double rate = std::max(newest.rate_factor, added.rate_factor);
  const auto share = [&](const GoodGradients& its) {
    return count_alike ? 1 : its.weight * (rate > 0 ? its.rate_factor / rate : 1);
  };
  if (!adds_up(*newest.values, share(newest), *added.values, share(added)))
    throw Error("gradients that wait already and these add up to more than numbers of their type can be");
  ParameterSet scaled;
  if (share(added) != 1) {
    scaled = *added.values;
    multiply(scaled, share(added));
  }
  if (!newest.own) {
    newest.own = std::make_shared<ParameterSet>(*newest.values);
    newest.values = newest.own;
  }
  std::map<std::int64_t, std::int64_t> versions = added.versions;
  // Nothing below fails.
  multiply(*newest.own, share(newest));
  add_to(*newest.own, scaled.empty() ? *added.values : scaled);
  if (!count_alike) {
    newest.weight = 1;
    newest.rate_factor = rate;
  }
  if (added.base && (!newest.base || oldest_of(added) < oldest_of(newest))) newest.base = added.base;
  newest.versions.merge(versions);
  for (const auto& [version, count] : versions) newest.versions[version] += count;  // of those that both are of
}

GradientApplier::GradientApplier(std::unique_ptr<UpdateRule> rule, GradientChangeMode mode,
                                 const StalenessOptions& staleness)
    : rule_(std::move(rule)), mode_(mode), options_(staleness) {
  if (!rule_) throw UsageError("expected a rule by which gradients change parameters, found none");
  validate(options_);
}

void GradientApplier::take_layout(const ParameterSet& parameters) {
  if (parameters.empty()) throw UsageError("expected parameters, found a set without arrays");
  for (const NamedArray& array : parameters) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", array.name()));
  }
  const std::lock_guard lock(mutex_);
  if (layout_) {
    if (const std::string difference = layout_->layout_difference(parameters); !difference.empty())
      throw UsageError(fmt::format("these parameters are of another model: {}", difference));
    return;
  }
  ParameterSet compensated;
  if (options_.delay_compensation > 0) compensated = set_with_layouts(layout_words(parameters));
  rule_->prepare(parameters);
  compensated_ = std::move(compensated);  // nobody has a model to change yet
  layout_ = std::make_shared<const ParameterSet>(set_with_layouts(layout_words(parameters)));
}

std::shared_ptr<const ParameterSet> GradientApplier::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

void GradientApplier::set_model(ParameterSet parameters) {
  take_layout(parameters);
  model_.set(std::move(parameters));
}

void GradientApplier::set_model(std::shared_ptr<const ParameterSet> parameters) {
  if (!parameters) throw UsageError("expected parameters, found none");
  take_layout(*parameters);
  model_.set(std::move(parameters));
}

void GradientApplier::set_rate_factor(double factor) {
  refuse_no_factor("rate_factor", factor);
  if (layout()) rule_->check({.rate_factor = factor});
  rate_factor_ = factor;
}

GoodGradients GradientApplier::good(std::shared_ptr<const ParameterSet> gradients, const GradientOrigin& origin) const {
  if (!gradients) throw UsageError("expected gradients, found none");
  const std::shared_ptr<const ParameterSet> expected = layout();
  if (!expected) throw UsageError("there are no parameters yet that gradients could change");
  if (!expected->same_layout(*gradients)) gradients = in_order_of(*expected, *gradients);
  if (!std::isfinite(origin.weight))
    throw UsageError(fmt::format("expected a weight that is finite, found {}", origin.weight));
  refuse_no_factor("rate_factor", origin.rate_factor);
  if (const double most = largest_factor(*expected); std::abs(origin.weight) > most)
    throw UsageError(
        fmt::format("expected a weight up to {:.3g}, as numbers of this model go, found {}", most, origin.weight));
  rule_->check({.gradient_scale = origin.weight, .rate_factor = rate_factor_ * origin.rate_factor});
  if (origin.base.version < 0)
    throw UsageError(fmt::format("expected a version from 0 on, found {}", origin.base.version));
  if (origin.base.parameters && !expected->same_layout(*origin.base.parameters))
    throw UsageError("these gradients are of parameters of another model");
  for (const NamedArray& array : *gradients) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has gradients that are infinite or not a number", array.name()));
  }
  return {.values = std::move(gradients),
          .weight = origin.weight,
          .rate_factor = origin.rate_factor,
          .versions = {{origin.base.parameters ? origin.base.version : GoodGradients::kNoVersion, 1}},
          .base = options_.delay_compensation > 0 ? origin.base.parameters : nullptr};
}

// g + lambda g g (now - base), in the type of each array, halves in float.
const ParameterSet& GradientApplier::compensated(const ParameterSet& gradients, const ParameterSet& now,
                                                 const ParameterSet& base, double lambda) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    dispatch(gradients[i].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T>) {
        std::ranges::copy(gradients[i].bytes(), compensated_[i].bytes().begin());
      } else {
        const std::span<const T> g = gradients[i].values<T>();
        const std::span<const T> to = now[i].values<T>();
        const std::span<const T> from = base[i].values<T>();
        const std::span<T> result = compensated_[i].values<T>();
        if constexpr (std::is_floating_point_v<T>) {
          const T factor = static_cast<T>(lambda);
          for (std::size_t j = 0; j < g.size(); ++j) result[j] = g[j] + factor * g[j] * g[j] * (to[j] - from[j]);
        } else {
          const auto factor = static_cast<float>(lambda);
          for (std::size_t j = 0; j < g.size(); ++j) {
            const float its = g[j].to_float();
            result[j] = T::from_float(its + factor * its * its * (to[j].to_float() - from[j].to_float()));
          }
        }
        if (!has_finite_numbers(compensated_[i]))
          throw Error(fmt::format("\"{}\": the delay compensation makes gradients that are infinite or not a number",
                                  compensated_[i].name()));
      }
    });
  }
  return compensated_;
}

std::int64_t GradientApplier::apply(const GoodGradients& gradients) {
  std::int64_t before = 0;
  const auto f = [&](ParameterSet& parameters, std::int64_t version) {
    before = version;
    const std::int64_t staleness = staleness_of(oldest_of(gradients), version);
    const double direction = mode_ == GradientChangeMode::ascent ? -1 : 1;
    const UpdateStep step{.gradient_scale = direction * gradients.weight,
                          .rate_factor = rate_factor_ * gradients.rate_factor *
                                         std::pow(1 + static_cast<double>(staleness), -options_.rate_exponent)};
    // What gradients make less, their negatives make more.
    const double lambda = direction * options_.delay_compensation;
    rule_->apply(parameters,
                 gradients.base && staleness > 0 ? compensated(*gradients.values, parameters, *gradients.base, lambda)
                                                 : *gradients.values,
                 step);
    if (!rule_->never_fails() && !layout()->same_layout(parameters))
      throw Error("the rule has made a model of other names, shapes or types");
  };
  const std::int64_t version = model_.change(f, rule_->never_fails());
  const std::lock_guard lock(mutex_);
  for (const auto& [its, count] : gradients.versions) staleness_[staleness_of(its, before)] += count;
  return version;
}

StalenessCounts GradientApplier::staleness() const {
  const std::lock_guard lock(mutex_);
  return staleness_;
}

void GradientApplier::save(ParameterSet& arrays, const std::string& prefix) const {
  model_.hold([&](const ParameterSet& parameters, std::int64_t version) {
    for (const NamedArray& array : parameters) arrays.add(array.layout(), array.bytes());
    const std::vector<std::int64_t> versions = {version};
    arrays.add(prefix + "version", {1}, versions);
    const std::vector<std::int64_t> mode = {mode_ == GradientChangeMode::ascent ? 1 : 0};
    arrays.add(prefix + "ascent", {1}, mode);
    const std::vector<double> factor = {rate_factor_};
    arrays.add(prefix + "rate_factor", {1}, factor);
    rule_->save(arrays, prefix + "rule/");
  });
}

void GradientApplier::restore(const ParameterSet& arrays, const std::string& prefix, Restored what) {
  const std::shared_ptr<const ParameterSet> expected = layout();
  if (!expected) throw UsageError("there are no parameters yet that a checkpoint could be of");
  const auto number = [&]<typename T>(const std::string& name, T most) {
    const std::span<const T> numbers = arrays.at(prefix + name).values<T>();
    if (numbers.size() != 1 || !(numbers[0] >= 0 && numbers[0] <= most))
      throw UsageError(fmt::format("\"{}{}\": expected one number from 0 to {}", prefix, name, most));
    return numbers[0];
  };
  const std::int64_t version = number("version", std::numeric_limits<std::int64_t>::max());
  const bool ascends = number("ascent", std::int64_t{1}) == 1;
  const double factor = number("rate_factor", std::numeric_limits<double>::max());
  ParameterSet parameters = *expected;
  copy_named(arrays, parameters);
  if (const auto astray = std::ranges::find_if_not(parameters, has_finite_numbers); astray != parameters.end())
    throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", astray->name()));
  model_.restore(std::move(parameters), version, [&] { restore_rule(*rule_, arrays, prefix + "rule/", what); });
  mode_ = ascends ? GradientChangeMode::ascent : GradientChangeMode::descent;
  rate_factor_ = factor;
}

}  // namespace detail
}  // namespace tutti
