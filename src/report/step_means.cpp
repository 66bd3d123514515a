#include "step_means.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace tutti::detail {

void StepMeans::start(double seconds) {
  *this = {};
  begin_ = seconds;
}

void StepMeans::add(const event::StepEnded& step) {
  // Steps that do not tell their rows count alike.
  const double weight = static_cast<double>(std::max<std::int64_t>(step.rows, 1));
  ++steps_;
  rows_ += step.rows;
  loss_.add(step.loss, weight);
  for (const NamedNumber& metric : step.metrics) {
    auto sum = std::ranges::find(metrics_, metric.name, &Sum::name);
    if (sum == metrics_.end()) sum = metrics_.insert(sum, Sum{.name = metric.name});
    sum->add(metric.value, weight);
  }
  for (const NamedNumber& count : step.counts) {
    const auto sum = std::ranges::find(counts_, count.name, &NamedNumber::name);
    if (sum == counts_.end())
      counts_.push_back(count);
    else
      sum->value += count.value;
  }
  last_ = step;
}

StepMeans::Means StepMeans::take() {
  const double seconds = last_.seconds - begin_;
  Means means{
      .step = last_.step,
      .epoch = last_.epoch,
      .seconds = last_.seconds,
      .lr = last_.lr,
      .loss = loss_.value / loss_.weight,
      .rows_per_second = seconds > 0 ? static_cast<double>(rows_) / seconds : std::numeric_limits<double>::quiet_NaN()};
  for (const Sum& metric : metrics_) means.metrics.push_back({metric.name, metric.value / metric.weight});
  means.counts = std::move(counts_);
  start(last_.seconds);
  return means;
}

}  // namespace tutti::detail
