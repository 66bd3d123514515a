#include <tutti/coordinate/aggregation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/kernels/inspect.hpp>

#include "changes.hpp"

namespace tutti {

using detail::ChangeRows;
using strategy::FederatedAggregation;

namespace {

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<FederatedAggregation>> kRuleNames = {
    "FedAvg", "FedProx",     "FedYogi", "FedAvgM",   "FedAdam", "FedAdagrad",
    "Median", "TrimmedMean", "Krum",    "MultiKrum", "Bulyan",  "NormClipping"};

template <typename Rule>
concept MeanRule = std::same_as<Rule, strategy::FedAvg> || std::same_as<Rule, strategy::FedProx> ||
    std::same_as<Rule, strategy::FedYogi> || std::same_as<Rule, strategy::FedAvgM> ||
    std::same_as<Rule, strategy::FedAdam> || std::same_as<Rule, strategy::FedAdagrad> ||
    std::same_as<Rule, strategy::NormClipping>;

// --- how many updates a rule needs ---

std::int64_t checked_byzantine(std::string_view rule, std::int64_t byzantine) {
  constexpr std::int64_t kMax = 100'000'000;
  if (byzantine < 0 || byzantine > kMax)
    throw UsageError(fmt::format("{}: expected byzantine from 0 to {}, found {}", rule, kMax, byzantine));
  return byzantine;
}

template <typename Rule>
std::int64_t least_updates_of(const Rule&) {
  return 1;
}
std::int64_t least_updates_of(const strategy::TrimmedMean& rule) {
  if (!(rule.fraction >= 0 && rule.fraction < 0.5))
    throw UsageError(fmt::format("TrimmedMean: expected a fraction from 0 to below 0.5, found {}", rule.fraction));
  return 1;
}
std::int64_t least_updates_of(const strategy::NormClipping& rule) {
  if (!(rule.max_norm > 0))
    throw UsageError(fmt::format("NormClipping: expected a max_norm above 0, found {}", rule.max_norm));
  return 1;
}
std::int64_t least_updates_of(const strategy::Krum& rule) { return 2 * checked_byzantine("Krum", rule.byzantine) + 3; }
std::int64_t least_updates_of(const strategy::MultiKrum& rule) {
  const std::int64_t least = 2 * checked_byzantine("MultiKrum", rule.byzantine) + 3;
  if (rule.keep < 0) throw UsageError(fmt::format("MultiKrum: expected keep from 0 on, found {}", rule.keep));
  return std::max(least, rule.keep);
}
std::int64_t least_updates_of(const strategy::Bulyan& rule) {
  return 4 * checked_byzantine("Bulyan", rule.byzantine) + 3;
}

template <typename Rule>
std::string reason_of_least(const Rule& rule) {
  if constexpr (requires { rule.keep; }) {
    if (rule.keep > 2 * rule.byzantine + 3) return fmt::format(", to keep {}", rule.keep);
  }
  if constexpr (requires { rule.byzantine; }) return fmt::format(", for {} that may be hostile", rule.byzantine);
  return "";
}

// --- updates ---

bool is_trained_array(const std::vector<bool>& is_trained, std::size_t array) {
  return is_trained.empty() || is_trained[array];
}

void refuse_other_count(const std::vector<bool>& is_trained, std::size_t arrays) {
  if (!is_trained.empty() && is_trained.size() != arrays)
    throw UsageError(fmt::format("is_trained tells of {} arrays, and there are {}", is_trained.size(), arrays));
}

const ParameterSet& values_of_update(const ClientUpdate& update) {
  if (update.values == nullptr) throw UsageError(fmt::format("client {} brought no values", update.client));
  return *update.values;
}

std::vector<ParameterLayout> layout_of_update(const ClientUpdate& update) {
  std::vector<ParameterLayout> layout;
  for (const NamedArray& array : values_of_update(update)) layout.push_back(array.layout());
  return layout;
}

double checked_factor(const ClientUpdate& update, std::string_view name, double factor) {
  if (!std::isfinite(factor) || factor < 0)
    throw UsageError(fmt::format("client {}: expected a {} from 0 on, found {}", update.client, name, factor));
  return factor;
}

template <Element T>
double as_double(T value) {
  if constexpr (requires { value.to_float(); })
    return static_cast<double>(value.to_float());
  else
    return static_cast<double>(value);
}

template <Element T>
double difference(T value, T base) {
  if constexpr (std::integral<T>) {
    // Exact however large both are, where a double has their difference.
    if (T exact; !__builtin_sub_overflow(value, base, &exact)) return static_cast<double>(exact);
  }
  return as_double(value) - as_double(base);
}

// Calls `visit(array, first, numbers)` for blocks of the change, in its order.
template <typename Visit>
void for_each_block_of_one(const ClientUpdate& update, const Visit& visit) {
  std::array<double, 4096> block;
  const ParameterSet& values = *update.values;
  for (std::size_t array = 0; array < values.size(); ++array) {
    const std::size_t length = values[array].length();
    for (std::size_t first = 0; first < length; first += block.size()) {
      const std::span<double> numbers = std::span(block).first(std::min(block.size(), length - first));
      detail::read_change(update, array, first, numbers);
      visit(array, first, std::span<const double>(numbers));
    }
  }
}

// --- rules that go by coordinate: each client counts as one ---

// Element by element the smaller one into `lower`. Written as the CPU's own minimum and maximum are; of -0 and 0, which
// are equal, both become the upper one.
void order_rows(double* __restrict lower, double* __restrict upper, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double a = lower[i];
    const double b = upper[i];
    lower[i] = a < b ? a : b;
    upper[i] = a > b ? a : b;
  }
}

// Of each number `mean(rows, merged)`, where columns are sorted.
template <typename Mean>
Change merge_by_coordinate(std::span<const ClientUpdate> updates, const Mean& mean) {
  Change change;
  for (const NamedArray& array : *updates.front().values) change.emplace_back(array.length());
  detail::for_each_block(updates, {}, [&](const ChangeRows& rows) {
    detail::sort_columns(rows);
    mean(rows, std::span(change[rows.array]).subspan(rows.first, rows.count));
  });
  return change;
}

// Of each number the mean without the `dropped` smallest and as many of the largest.
Change mean_of_the_middle(std::span<const ClientUpdate> updates, std::size_t dropped) {
  return merge_by_coordinate(updates, [&](const ChangeRows& rows, std::span<double> merged) {
    const std::span<const double> lowest = rows[dropped];
    const std::span<const double> highest = rows[rows.updates - 1 - dropped];
    const auto kept = static_cast<double>(rows.updates - 2 * dropped);
    for (std::size_t row = dropped; row < rows.updates - dropped; ++row) {
      const std::span<const double> its = rows[row];
      for (std::size_t i = 0; i < merged.size(); ++i) merged[i] += its[i];
    }
    // A mean is not outside of what it is of, whatever was rounded.
    for (std::size_t i = 0; i < merged.size(); ++i) merged[i] = std::clamp(merged[i] / kept, lowest[i], highest[i]);
  });
}

Change median_of(std::span<const ClientUpdate> updates) {
  return mean_of_the_middle(updates, (updates.size() - 1) / 2);
}

// Of each number the mean of the `kept` that are nearest to the median; of two as near the smaller one stays.
Change mean_of_the_nearest(std::span<const ClientUpdate> updates, std::size_t kept) {
  return merge_by_coordinate(updates, [&](const ChangeRows& rows, std::span<double> merged) {
    const std::span<const double> below = rows[(rows.updates - 1) / 2];
    const std::span<const double> above = rows[rows.updates / 2];
    for (std::size_t i = 0; i < merged.size(); ++i) {
      const double median = (below[i] + above[i]) / 2;
      std::size_t first = 0;
      std::size_t last = rows.updates - 1;
      while (last - first + 1 > kept) {
        if (median - rows[first][i] > rows[last][i] - median)
          ++first;
        else
          --last;
      }
      double sum = 0;
      for (std::size_t row = first; row <= last; ++row) sum += rows[row][i];
      merged[i] = std::clamp(sum / static_cast<double>(kept), rows[first][i], rows[last][i]);
    }
  });
}

std::vector<ClientUpdate> selected_updates(std::span<const ClientUpdate> updates,
                                           std::span<const std::size_t> selection) {
  std::vector<ClientUpdate> selected;
  for (const std::size_t index : selection) selected.push_back(updates[index]);
  return selected;
}

Change mean_of_the_best(std::span<const ClientUpdate> updates, std::int64_t byzantine,
                        const std::vector<bool>& is_trained, std::size_t keep) {
  const std::vector<std::size_t> order = krum_order(updates, byzantine, is_trained);
  return mean_of_the_middle(selected_updates(updates, std::span(order).first(keep)), 0);
}

// --- a rule's own ---

// All are of one layout, and enough.
template <MeanRule Rule>
Change merge_by(const Rule& rule, std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained) {
  double max_norm = 0;
  if constexpr (std::same_as<Rule, strategy::NormClipping>) max_norm = rule.max_norm;
  MeanOfUpdates mean(max_norm, is_trained);
  for (const ClientUpdate& update : updates) mean.add(update);
  return mean.result();
}
Change merge_by(const strategy::Median&, std::span<const ClientUpdate> updates, const std::vector<bool>&) {
  return median_of(updates);
}
Change merge_by(const strategy::TrimmedMean& rule, std::span<const ClientUpdate> updates, const std::vector<bool>&) {
  // 0.29 of 100 are 29, though their product in double is below.
  const auto share = static_cast<std::size_t>(rule.fraction * static_cast<double>(updates.size()) + 1e-9);
  return mean_of_the_middle(updates, std::min(share, (updates.size() - 1) / 2));
}
Change merge_by(const strategy::Krum& rule, std::span<const ClientUpdate> updates,
                const std::vector<bool>& is_trained) {
  return mean_of_the_best(updates, rule.byzantine, is_trained, 1);
}
Change merge_by(const strategy::MultiKrum& rule, std::span<const ClientUpdate> updates,
                const std::vector<bool>& is_trained) {
  const std::size_t honest = updates.size() - static_cast<std::size_t>(rule.byzantine);
  return mean_of_the_best(updates, rule.byzantine, is_trained,
                          rule.keep == 0 ? honest : static_cast<std::size_t>(rule.keep));
}
Change merge_by(const strategy::Bulyan& rule, std::span<const ClientUpdate> updates,
                const std::vector<bool>& is_trained) {
  const std::vector<std::size_t> selection = detail::bulyan_selection(updates, rule.byzantine, is_trained);
  return mean_of_the_nearest(selected_updates(updates, selection),
                             selection.size() - 2 * static_cast<std::size_t>(rule.byzantine));
}

}  // namespace

namespace detail {

// By Batcher's merging of odd and even (Knuth, volume 3, 5.2.2, algorithm M): what is compared with what depends on the
// number of rows alone, so that many columns are sorted at a time.
void sort_columns(const ChangeRows& rows) {
  const std::size_t n = rows.updates;
  for (std::size_t sorted = 1; sorted < n; sorted *= 2) {
    for (std::size_t gap = sorted; gap >= 1; gap /= 2) {
      for (std::size_t start = gap % sorted; start + gap < n; start += 2 * gap) {
        for (std::size_t i = start; i < std::min(start + gap, n - gap); ++i) {
          if (i / (2 * sorted) == (i + gap) / (2 * sorted))
            order_rows(rows[i].data(), rows[i + gap].data(), rows.count);
        }
      }
    }
  }
}

void read_change(const ClientUpdate& update, std::size_t array, std::size_t first, std::span<double> change) {
  const NamedArray& values = (*update.values)[array];
  dispatch(values.type(), [&]<typename T>(std::type_identity<T>) {
    const T* its = values.values<T>().data() + first;
    if (update.base == nullptr) {
      for (std::size_t i = 0; i < change.size(); ++i) change[i] = as_double(its[i]);
      return;
    }
    const T* from = (*update.base)[array].values<T>().data() + first;
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = difference(its[i], from[i]);
    // Of what is not finite, the difference is no number where nothing has changed.
    for (std::size_t i = 0; i < change.size(); ++i) {
      if (std::isnan(change[i]) && have_same_bits(its[i], from[i])) change[i] = 0;
    }
  });
}

void for_each_block(std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained,
                    const std::function<void(const ChangeRows&)>& visit) {
  // As many as a core's own cache holds of all rows.
  const std::size_t width = std::clamp<std::size_t>(16'384 / updates.size(), 32, 4096);
  std::vector<double> numbers(updates.size() * width);
  const ParameterSet& layout = *updates.front().values;
  for (std::size_t array = 0; array < layout.size(); ++array) {
    if (!is_trained_array(is_trained, array)) continue;
    const std::size_t length = layout[array].length();
    for (std::size_t first = 0; first < length; first += width) {
      const ChangeRows rows{array, first, std::min(width, length - first), updates.size(), numbers.data()};
      for (std::size_t i = 0; i < updates.size(); ++i) {
        read_change(updates[i], array, first, rows[i]);
        if (updates[i].discount == 1) continue;
        for (double& number : rows[i]) number *= updates[i].discount;
      }
      visit(rows);
    }
  }
}

void refuse_other_layout(const ClientUpdate& update, std::span<const ParameterLayout> expected) {
  const auto compare = [&](const ParameterSet& set, std::string_view whose) {
    if (set.size() != expected.size()) {
      throw UsageError(
          fmt::format("client {}{}: expected {} arrays, found {}", update.client, whose, expected.size(), set.size()));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const ParameterLayout& its = set[i].layout();
      if (its != expected[i]) {
        throw UsageError(fmt::format("client {}{}: expected \"{}\", {}, found \"{}\", {}", update.client, whose,
                                     expected[i].name, to_string(expected[i]), its.name, to_string(its)));
      }
    }
  };
  compare(values_of_update(update), "");
  if (update.base != nullptr) compare(*update.base, "'s base");
}

void refuse_unless_updates_fit(std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained) {
  const std::vector<ParameterLayout> expected = layout_of_update(updates.front());
  refuse_other_count(is_trained, expected.size());
  for (const ClientUpdate& update : updates) {
    refuse_other_layout(update, expected);
    checked_factor(update, "discount", update.discount);
  }
}

}  // namespace detail

std::string_view rule_name(const FederatedAggregation& rule) { return kRuleNames[rule.index()]; }

std::int64_t least_updates(const FederatedAggregation& rule) {
  return std::visit([](const auto& its) { return least_updates_of(its); }, rule);
}

void refuse_too_few(const FederatedAggregation& rule, std::int64_t updates) {
  const std::int64_t least = least_updates(rule);
  if (updates >= least) return;
  throw UsageError(fmt::format("{}: expected at least {} update{}{}, found {}", rule_name(rule), least,
                               least == 1 ? "" : "s",
                               std::visit([](const auto& its) { return reason_of_least(its); }, rule), updates));
}

bool is_mean(const FederatedAggregation& rule) {
  return std::visit([]<typename Rule>(const Rule&) { return MeanRule<Rule>; }, rule);
}

Change aggregate(const FederatedAggregation& rule, std::span<const ClientUpdate> updates,
                 const std::vector<bool>& is_trained) {
  refuse_too_few(rule, static_cast<std::int64_t>(updates.size()));
  std::vector<ClientUpdate> by_client(updates.begin(), updates.end());
  std::ranges::stable_sort(by_client, {}, &ClientUpdate::client);
  detail::refuse_unless_updates_fit(by_client, is_trained);
  return std::visit([&](const auto& its) { return merge_by(its, by_client, is_trained); }, rule);
}

MeanOfUpdates::MeanOfUpdates(double max_norm, std::vector<bool> is_trained)
    : max_norm_(max_norm), is_trained_(std::move(is_trained)) {
  if (!(max_norm >= 0)) throw UsageError(fmt::format("expected a max_norm from 0 on, found {}", max_norm));
}

void MeanOfUpdates::add(const ClientUpdate& update) {
  const double weight =
      checked_factor(update, "weight", update.weight) * checked_factor(update, "discount", update.discount);
  if (count_ == 0) {
    std::vector<ParameterLayout> layout = layout_of_update(update);
    refuse_other_count(is_trained_, layout.size());
    detail::refuse_other_layout(update, layout);
    layout_ = std::move(layout);
    sum_.clear();
    for (const NamedArray& array : *update.values) sum_.emplace_back(array.length());
  } else {
    detail::refuse_other_layout(update, layout_);
  }
  ++count_;
  // What counts for nothing may be anything.
  if (weight == 0) return;
  weight_ += weight;
  double kept = 1;
  if (max_norm_ > 0) {
    if (const double norm = norm_of(update, is_trained_); norm > max_norm_) kept = max_norm_ / norm;
  }
  for_each_block_of_one(update, [&](std::size_t array, std::size_t first, std::span<const double> change) {
    double* sum = sum_[array].data() + first;
    const double factor = is_trained_array(is_trained_, array) ? weight * kept : weight;
    for (std::size_t i = 0; i < change.size(); ++i) sum[i] += factor * change[i];
  });
}

Change MeanOfUpdates::result() const {
  if (!(weight_ > 0) || !std::isfinite(weight_))
    throw UsageError(fmt::format("the updates weigh {} together, so they have no mean", weight_));
  Change mean = sum_;
  for (std::vector<double>& array : mean) {
    for (double& number : array) number /= weight_;
  }
  return mean;
}

void MeanOfUpdates::clear() {
  count_ = 0;
  weight_ = 0;
  layout_.clear();
  sum_.clear();
}

double norm_of(const ClientUpdate& update, const std::vector<bool>& is_trained) {
  refuse_other_count(is_trained, values_of_update(update).size());
  detail::refuse_other_layout(update, layout_of_update(update));
  double sum = 0;
  for_each_block_of_one(update, [&](std::size_t array, std::size_t, std::span<const double> change) {
    if (is_trained_array(is_trained, array)) sum += sum_of_squares(DataType::float64, change.data(), change.size());
  });
  return std::sqrt(sum);
}

}  // namespace tutti
