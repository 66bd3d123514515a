// Losses, and what is measured beside them.
//
//   LossRegistry losses;                                                // those that tutti has
//   Loss loss = losses.find("cross_entropy")->resolve(options, output, data);
//   WeightedLoss mean = loss.compute(output, target);                   // over its rows, and what they count for
//   mean.loss.backward();
//
// Where a target is a class, what comes out of the graph has a number for each class in its last dimension.
#pragma once

#include <functional>
#include <string>

#include <tutti/base/named_types.hpp>
#include <tutti/base/options.hpp>
#include <tutti/base/shape.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/nn/weighted_loss.hpp>

namespace tutti {

struct Loss {
  // A tensor alone is a mean over rows that count alike.
  std::function<WeightedLoss(const torch::Tensor& output, const torch::Tensor& target)> compute;
};

struct LossType {
  std::string name;
  // Refuses, at the place of its options, an output or a target that it is not for.
  std::function<Loss(const Options& options, const ValueSpec& output, const DataDescription& data)> resolve;
};

// cross_entropy, nll, bce (of logits), mse, l1.
class LossRegistry : public NamedTypes<LossType> {
 public:
  LossRegistry();
};

// What a metric has seen: `sum` over `count` of whatever it counts.
struct MetricSum {
  double sum = 0;
  double count = 0;
};

struct Metric {
  std::function<MetricSum(const torch::Tensor& output, const torch::Tensor& target)> measure;
  // From the mean to what is told; the mean itself where there is none.
  std::function<double(double mean)> finish = {};
  bool is_better_higher = true;
};

// What is told of all that a metric has seen; no number where that is nothing.
double value_of(const Metric& metric, const MetricSum& seen);

struct MetricType {
  std::string name;
  std::function<Metric(const Options& options, const ValueSpec& output, const DataDescription& data)> resolve;
};

// accuracy, top_k, mae, perplexity.
class MetricRegistry : public NamedTypes<MetricType> {
 public:
  MetricRegistry();
};

}  // namespace tutti
