#include <tutti/data/split.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "draws.hpp"

namespace tutti {
namespace {

std::int64_t share_of(std::int64_t rows, double share) {
  const auto nearest = static_cast<std::int64_t>(std::llround(share * static_cast<double>(rows)));
  return share > 0 ? std::max<std::int64_t>(nearest, 1) : 0;
}

}  // namespace

RowSplit split_rows(std::int64_t rows, const RowSplitOptions& options, std::uint64_t seed) {
  const auto is_share = [](double share) { return share >= 0 && share < 1; };
  if (!is_share(options.test) || !is_share(options.validation) || options.test + options.validation >= 1)
    throw UsageError(fmt::format("expected shares from 0 to 1, and less than 1 together, found {} and {}", options.test,
                                 options.validation));
  std::int64_t test = share_of(rows, options.test);
  std::int64_t validation = share_of(rows, options.validation);
  // Of few rows both may be rounded up, and nothing left: the larger gives one back.
  std::int64_t& larger = test > validation ? test : validation;
  if (test + validation >= rows && larger > 1) --larger;
  const std::int64_t train = rows - test - validation;
  if (train < 1) {
    throw UsageError(
        fmt::format("a split of {} row{} into {} for testing and {} for validation leaves none to train with", rows,
                    rows == 1 ? "" : "s", test, validation));
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  if (options.shuffle && train < rows) {
    RandomStream draws({seed, detail::number_of(detail::Draws::split)});
    draws.shuffle(std::span(order));
  }
  RowSplit split{.train = {order.begin(), order.begin() + train},
                 .validation = {order.begin() + train, order.begin() + train + validation},
                 .test = {order.begin() + train + validation, order.end()}};
  for (std::vector<std::int64_t>* part : {&split.train, &split.validation, &split.test}) std::ranges::sort(*part);
  return split;
}

}  // namespace tutti
