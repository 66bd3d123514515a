#include "child_merge.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <tutti/coordinate/aggregation.hpp>

#include "changes.hpp"
#include "rounding.hpp"

namespace tutti::detail {
namespace {

// --- the order of the sets ---

bool has_smaller_bytes(const ParameterSet& one, const ParameterSet& other) {
  for (std::size_t i = 0; i < one.size(); ++i) {
    const auto [a, b] = std::ranges::mismatch(one[i].bytes(), other[i].bytes());
    if (a != one[i].bytes().end()) return *a < *b;
  }
  return false;
}

bool comes_before(const ChildParameters& one, const ChildParameters& other) {
  const auto key = [](const ChildParameters& its) {
    return std::tuple(its.update.child, its.update.weight, its.update.score);
  };
  if (key(one) != key(other)) return key(one) < key(other);
  return has_smaller_bytes(*one.values, *other.values);
}

// --- means ---

// A sum with what was rounded away of it (Knuth, volume 2, 4.2.2, theorem B).
struct Sum {
  double sum = 0;
  double rest = 0;

  void add(double value) {
    const double next = sum + value;
    const double added = next - sum;
    rest += (sum - (next - added)) + (value - added);
    sum = next;
  }
  double result() const { return sum + rest; }
  // With what a division by itself would round away.
  double over(double count) const {
    const double quotient = sum / count;
    return quotient + (std::fma(-quotient, count, sum) + rest) / count;
  }
};

// What children count for. Only how much that is beside the others matters: so it is at most 1, by a power of two.
struct Shares {
  explicit Shares(std::vector<double> weights) : of_child(std::move(weights)) {
    int exponent = 0;
    (void)std::frexp(*std::ranges::max_element(of_child), &exponent);
    Sum sum;
    for (double& share : of_child) sum.add(share = std::ldexp(share, -exponent));
    total = sum.result();
  }

  std::vector<double> of_child;
  double total = 0;
};

Shares shares_of(const Merger& merger, std::span<const ChildParameters> sets) {
  std::vector<double> weights;
  for (const ChildParameters& its : sets)
    weights.push_back(std::holds_alternative<WeightedAverage>(merger) ? its.update.weight : 1);
  return Shares(std::move(weights));
}

// Numbers as large as this are made smaller for a while, so that no sum of them is infinite.
constexpr double kLarge = 0x1p900;
constexpr double kSmaller = 0x1p-120;

// Of each column the mean by the shares.
void mean_of_rows(const ChangeRows& rows, const Shares& shares, std::span<double> means) {
  std::vector<double> lowest(rows[0].begin(), rows[0].end());
  std::vector<double> highest = lowest;
  for (std::size_t row = 1; row < rows.updates; ++row) {
    const std::span<const double> its = rows[row];
    for (std::size_t i = 0; i < rows.count; ++i) {
      lowest[i] = std::min(lowest[i], its[i]);
      highest[i] = std::max(highest[i], its[i]);
    }
  }
  std::vector<double> scales(rows.count);
  for (std::size_t i = 0; i < rows.count; ++i) scales[i] = std::max(-lowest[i], highest[i]) > kLarge ? kSmaller : 1;
  std::vector<Sum> sums(rows.count);
  for (std::size_t row = 0; row < rows.updates; ++row) {
    const std::span<const double> its = rows[row];
    for (std::size_t i = 0; i < rows.count; ++i) sums[i].add(shares.of_child[row] * (scales[i] * its[i]));
  }
  for (std::size_t i = 0; i < rows.count; ++i) {
    // All alike are what they are, a negative zero included.
    means[i] =
        lowest[i] < highest[i] ? std::clamp(sums[i].over(shares.total) / scales[i], lowest[i], highest[i]) : rows[0][i];
  }
}

void median_of_rows(const ChangeRows& rows, std::span<double> medians) {
  sort_columns(rows);
  const std::span<const double> below = rows[(rows.updates - 1) / 2];
  const std::span<const double> above = rows[rows.updates / 2];
  for (std::size_t i = 0; i < rows.count; ++i)
    medians[i] = below[i] < above[i] ? std::midpoint(below[i], above[i]) : below[i];
}

// --- integers, whose differences are exact however large they are ---

template <std::integral T>
std::make_unsigned_t<T> distance(T lower, T upper) {
  using Unsigned = std::make_unsigned_t<T>;
  return static_cast<Unsigned>(static_cast<Unsigned>(upper) - static_cast<Unsigned>(lower));
}

template <std::integral T>
T moved(T from, std::make_unsigned_t<T> by) {
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(from) + by);
}

// The nearest integer, of halves the one farther from 0. Exact, where a double has the sum of what they are apart.
template <std::integral T>
T mean_of_integers(std::span<const T> column, const Shares& shares) {
  const auto [lowest, highest] = std::ranges::minmax(column);
  Sum sum;
  for (std::size_t i = 0; i < column.size(); ++i)
    sum.add(shares.of_child[i] * static_cast<double>(distance(lowest, column[i])));
  const double step = sum.over(shares.total);
  const double whole = std::floor(step);
  if (whole >= static_cast<double>(distance(lowest, highest))) return highest;
  const T below = moved(lowest, static_cast<std::make_unsigned_t<T>>(whole));
  const double part = step - whole;
  return part > 0.5 || (part == 0.5 && below >= 0) ? moved(below, 1) : below;
}

template <std::integral T>
T median_of_integers(std::span<T> column) {
  std::ranges::sort(column);
  const T lower = column[(column.size() - 1) / 2];
  const auto apart = distance(lower, column[column.size() / 2]);
  const T below = moved<T>(lower, apart / 2);
  return apart % 2 == 1 && below >= 0 ? moved(below, 1) : below;
}

template <std::integral T>
void merge_integers(bool is_median, std::span<const ChildParameters> sets, const Shares& shares, std::size_t array,
                    std::span<T> merged) {
  std::vector<T> column(sets.size());
  for (std::size_t i = 0; i < merged.size(); ++i) {
    for (std::size_t child = 0; child < sets.size(); ++child)
      column[child] = std::as_const(*sets[child].values)[array].template values<T>()[i];
    merged[i] =
        is_median ? median_of_integers(std::span(column)) : mean_of_integers(std::span<const T>(column), shares);
  }
}

const ParameterSet& best_of(std::span<const ChildParameters> sets) {
  return *std::ranges::max_element(sets, {}, [](const ChildParameters& its) { return its.update.score; })->values;
}

}  // namespace

void merge_children(const Merger& merger, std::vector<ChildParameters> sets, ParameterSet& merged) {
  std::ranges::sort(sets, comes_before);
  if (std::holds_alternative<BestOfChildren>(merger)) {
    merged = best_of(sets);
    return;
  }
  const bool is_median = std::holds_alternative<MedianOfChildren>(merger);
  const Shares shares = shares_of(merger, sets);
  std::vector<bool> has_floats;
  for (std::size_t i = 0; i < merged.size(); ++i) {
    has_floats.push_back(is_floating(merged[i].type()));
    dispatch(merged[i].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::integral<T>) merge_integers(is_median, sets, shares, i, merged[i].values<T>());
    });
  }
  std::vector<ClientUpdate> updates;
  for (const ChildParameters& its : sets) updates.push_back({.client = its.update.child, .values = its.values.get()});
  std::vector<double> results;
  for_each_block(updates, has_floats, [&](const ChangeRows& rows) {
    results.resize(rows.count);
    is_median ? median_of_rows(rows, results) : mean_of_rows(rows, shares, results);
    dispatch(merged[rows.array].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (!std::integral<T>)
        std::ranges::transform(results,
                               merged[rows.array].values<T>().begin() + static_cast<std::ptrdiff_t>(rows.first),
                               [](double result) { return rounded<T>(result); });
    });
  });
}

}  // namespace tutti::detail
