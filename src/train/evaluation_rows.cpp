#include "evaluation_rows.hpp"

#include <algorithm>
#include <numeric>

namespace tutti::detail {
namespace {

// Enough rows for the full speed of a matrix product, and not so many that they take more memory than a step.
constexpr std::int64_t kLeastRows = 256;
constexpr std::int64_t kLeastElements = 1 << 20;

}  // namespace

std::int64_t rows_at_once(const Run& run) {
  std::int64_t elements = 1;
  for (const auto& [name, spec] : run.data.opened_by.description.inputs)
    elements += element_count(spec.shape).value_or(kMostElements);
  return std::max(run.data.batch_size, std::min(kLeastRows, kLeastElements / elements));
}

std::vector<std::int64_t> batch_numbers(std::int64_t batch, std::int64_t batch_rows, std::int64_t rows) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(batch_rows, rows - batch * batch_rows)));
  std::iota(numbers.begin(), numbers.end(), batch * batch_rows);
  return numbers;
}

std::size_t evaluation_width(const Run& run) { return 2 + 2 * run.metrics.size(); }

void measure(const Run& run, const torch::Tensor& output, const torch::Tensor& target, std::span<double> sums) {
  const WeightedLoss loss = run.loss.compute(output, target);
  sums[1] = loss.weight.value_or(static_cast<double>(target.size(0)));
  if (sums[1] > 0) sums[0] = loss.loss.item<double>() * sums[1];
  for (std::size_t m = 0; m < run.metrics.size(); ++m) {
    const MetricSum sum = run.metrics[m].metric.measure(output, target);
    sums[2 + 2 * m] = sum.sum;
    sums[3 + 2 * m] = sum.count;
  }
}

Evaluation evaluation_of(const Run& run, std::int64_t rows, const std::vector<double>& sums) {
  const std::size_t width = evaluation_width(run);
  std::vector<double> all(width);
  for (std::size_t i = 0; i < sums.size(); ++i) all[i % width] += sums[i];
  Evaluation evaluation{.rows = rows, .loss = all[0] / all[1], .metrics = {}};
  for (std::size_t m = 0; m < run.metrics.size(); ++m)
    evaluation.metrics.push_back(
        {run.metrics[m].name, value_of(run.metrics[m].metric, {all[2 + 2 * m], all[3 + 2 * m]})});
  return evaluation;
}

}  // namespace tutti::detail
