#include "gradient_applier.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/update_check.hpp>

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
  rule_->prepare(parameters);
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

void GradientApplier::refuse_unless_good(const ParameterSet& gradients, const GradientOrigin& origin) const {
  const std::shared_ptr<const ParameterSet> expected = layout();
  if (!expected) throw UsageError("there are no parameters yet that gradients could change");
  if (const std::string difference = expected->layout_difference(gradients); !difference.empty())
    throw UsageError(fmt::format("these gradients are not of this model: {}", difference));
  if (!std::isfinite(origin.weight))
    throw UsageError(fmt::format("expected a weight that is finite, found {}", origin.weight));
  if (origin.base.version < 0)
    throw UsageError(fmt::format("expected a version from 0 on, found {}", origin.base.version));
  if (origin.base.parameters && !expected->same_layout(*origin.base.parameters))
    throw UsageError("these gradients are of parameters of another model");
  for (const NamedArray& array : gradients) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has gradients that are infinite or not a number", array.name()));
  }
}

// g + lambda g g (now - base), in the type of each array.
const ParameterSet& GradientApplier::compensated(const ParameterSet& gradients, const ParameterSet& now,
                                                 const ParameterSet& base) {
  if (!scratch_) scratch_ = set_with_layouts(layout_words(gradients));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    dispatch(gradients[i].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        const std::span<const T> g = gradients[i].values<T>();
        const std::span<const T> to = now[i].values<T>();
        const std::span<const T> from = base[i].values<T>();
        const std::span<T> result = (*scratch_)[i].values<T>();
        const T lambda = static_cast<T>(options_.delay_compensation);
        for (std::size_t j = 0; j < g.size(); ++j) result[j] = g[j] + lambda * g[j] * g[j] * (to[j] - from[j]);
      } else {
        std::ranges::copy(gradients[i].bytes(), (*scratch_)[i].bytes().begin());
      }
    });
  }
  return *scratch_;
}

std::int64_t GradientApplier::apply(const ParameterSet& gradients, const GradientOrigin& origin) {
  std::int64_t staleness = 0;
  const auto f = [&](ParameterSet& parameters, std::int64_t version) {
    if (origin.base.parameters) staleness = std::max<std::int64_t>(0, version - origin.base.version);
    const double direction = mode_ == GradientChangeMode::ascent ? -1 : 1;
    const UpdateStep step{.gradient_scale = direction * origin.weight,
                          .rate_factor = std::pow(1 + static_cast<double>(staleness), -options_.rate_exponent)};
    const bool is_compensated = options_.delay_compensation > 0 && staleness > 0;
    rule_->apply(parameters, is_compensated ? compensated(gradients, parameters, *origin.base.parameters) : gradients,
                 step);
  };
  const std::int64_t version = model_.change(f, rule_->never_fails() && options_.delay_compensation == 0);
  const std::lock_guard lock(mutex_);
  ++staleness_[staleness];
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
    rule_->save(arrays, prefix + "rule/");
  });
}

void GradientApplier::restore(const ParameterSet& arrays, const std::string& prefix) {
  const std::shared_ptr<const ParameterSet> expected = layout();
  if (!expected) throw UsageError("there are no parameters yet that a checkpoint could be of");
  const std::span<const std::int64_t> version = arrays.at(prefix + "version").values<std::int64_t>();
  if (version.size() != 1 || version[0] < 0)
    throw UsageError(fmt::format("\"{}version\": expected one number from 0 on", prefix));
  ParameterSet parameters;
  for (const NamedArray& array : *expected) {
    const NamedArray& saved = arrays.at(array.name());
    if (saved.layout() != array.layout())
      throw UsageError(
          fmt::format("\"{}\" is {}, expected {}", saved.name(), to_string(saved.layout()), to_string(array.layout())));
    parameters.add(saved.layout(), saved.bytes());
  }
  rule_->restore(arrays, prefix + "rule/");
  model_.restore(std::move(parameters), version[0]);
}

}  // namespace detail
}  // namespace tutti
