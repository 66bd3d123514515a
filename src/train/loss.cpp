#include <tutti/train/loss.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>

namespace tutti {
namespace {

namespace F = torch::nn::functional;

// A class for each position of the output but its last dimension.
void expect_classes(const Options& options, const ValueSpec& output, const DataDescription& data) {
  Shape expected = data.target.shape;
  expected.push_back(data.classes);
  const bool fits = data.target.type == ValueType::int64 && output.type == ValueType::float32 &&
                    output.shape.size() == expected.size() &&
                    std::equal(data.target.shape.begin(), data.target.shape.end(), output.shape.begin()) &&
                    (data.classes == 0 || output.shape.back() == data.classes);
  if (fits) return;
  if (data.target.type != ValueType::int64)
    throw options.error(fmt::format("expected a target that is a class, found {}", to_string(data.target)));
  if (data.classes == 0) {
    throw options.error(fmt::format("expected an output of the shape {} and a number for each class, found {}",
                                    to_string(data.target.shape), to_string(output)));
  }
  throw options.error(fmt::format("expected an output of the shape {}, for {} classes, found {}", to_string(expected),
                                  data.classes, to_string(output)));
}

void expect_alike(const Options& options, const ValueSpec& output, const DataDescription& data) {
  if (output == data.target && output.type == ValueType::float32) return;
  throw options.error(fmt::format("expected an output and a target of float32 and of one shape, found {} and {}",
                                  to_string(output), to_string(data.target)));
}

// Rows and positions become one dimension.
torch::Tensor by_class(const torch::Tensor& output) { return output.reshape({-1, output.size(-1)}); }

// A class that stands for none, such as that of padding: what has it does not count.
std::int64_t read_ignored(const Options& options) {
  constexpr std::int64_t kIgnored = -100;  // PyTorch's
  return options.integer("ignore_index", {}, kIgnored);
}

// A mean over what counts, by its weight; of nothing it would be no number.
template <typename Mean>
WeightedLoss mean_of(const torch::Tensor& output, double weight, const Mean& mean) {
  if (weight == 0) return {output.sum() * 0, 0.0};
  return {mean(), weight};
}

double weight_of(const torch::Tensor& classes, std::int64_t ignored, const torch::Tensor& weights) {
  const torch::Tensor counts = classes.ne(ignored);
  if (!weights.defined()) return counts.sum().item<double>();
  return weights.index_select(0, classes.masked_select(counts)).sum().item<double>();
}

Loss resolve_cross_entropy(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_classes(options, output, data);
  const double smoothing = options.number("label_smoothing", {.min = 0, .max = 1, .max_excluded = true}, 0);
  const std::int64_t ignored = read_ignored(options);
  torch::Tensor weights;
  if (const std::optional<JsonValue> value = options.find("class_weights")) {
    if (static_cast<std::int64_t>(value->size()) != output.shape.back())
      throw value->error(
          fmt::format("expected {} weights, one for each class, found {}", output.shape.back(), value->size()));
    std::vector<double> numbers;
    for (const JsonValue& one : value->elements()) numbers.push_back(one.number({.min = 0}));
    if (std::ranges::all_of(numbers, [](double number) { return number == 0; }))
      throw value->error("expected a class that counts for something, found zeros alone");
    weights = torch::tensor(numbers, torch::kFloat32);
  }
  return {[smoothing, ignored, weights](const torch::Tensor& found, const torch::Tensor& target) {
    const torch::Tensor classes = target.reshape(-1);
    return mean_of(found, weight_of(classes, ignored, weights), [&] {
      auto its = F::CrossEntropyFuncOptions().label_smoothing(smoothing).ignore_index(ignored);
      if (weights.defined()) its.weight(weights.to(found.scalar_type()));
      return F::cross_entropy(by_class(found), classes, its);
    });
  }};
}

Loss resolve_nll(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_classes(options, output, data);
  const std::int64_t ignored = read_ignored(options);
  return {[ignored](const torch::Tensor& found, const torch::Tensor& target) {
    const torch::Tensor classes = target.reshape(-1);
    return mean_of(found, weight_of(classes, ignored, {}),
                   [&] { return torch::nll_loss(by_class(found), classes, {}, torch::Reduction::Mean, ignored); });
  }};
}

using Difference = torch::Tensor (*)(const torch::Tensor&, const torch::Tensor&);

void add(LossRegistry& registry, const std::string& name, Difference f) {
  registry.add(
      {.name = name, .resolve = [f](const Options& options, const ValueSpec& output, const DataDescription& data) {
         expect_alike(options, output, data);
         return Loss{f};
       }});
}

// --- metrics ---

struct Counted {
  torch::Tensor output;
  torch::Tensor classes;
};
Counted what_counts(const torch::Tensor& output, const torch::Tensor& target, std::int64_t ignored) {
  const torch::Tensor classes = target.reshape(-1);
  const torch::Tensor counts = classes.ne(ignored);
  if (counts.all().item<bool>()) return {by_class(output), classes};
  const torch::Tensor rows = counts.nonzero().reshape(-1);
  return {by_class(output).index_select(0, rows), classes.index_select(0, rows)};
}

MetricSum top(const Counted& its, std::int64_t k) {
  const torch::Tensor best = std::get<1>(its.output.topk(k, 1));
  const torch::Tensor hits = best.eq(its.classes.reshape({-1, 1})).any(1);
  return {hits.sum().item<double>(), static_cast<double>(hits.numel())};
}

Metric metric_of_top(std::int64_t k, std::int64_t ignored) {
  return {.measure = [k, ignored](const torch::Tensor& found, const torch::Tensor& target) {
    return top(what_counts(found, target, ignored), k);
  }};
}

Metric resolve_accuracy(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_classes(options, output, data);
  return metric_of_top(1, read_ignored(options));
}

Metric resolve_top_k(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_classes(options, output, data);
  const std::int64_t k =
      options.integer("k", {.min = 1, .max = output.shape.back()}, std::min<std::int64_t>(5, output.shape.back()));
  return metric_of_top(k, read_ignored(options));
}

Metric resolve_mae(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_alike(options, output, data);
  return {.measure =
              [](const torch::Tensor& found, const torch::Tensor& target) {
                const torch::Tensor differences = (found - target).abs();
                return MetricSum{differences.sum().item<double>(), static_cast<double>(differences.numel())};
              },
          .is_better_higher = false};
}

Metric resolve_perplexity(const Options& options, const ValueSpec& output, const DataDescription& data) {
  expect_classes(options, output, data);
  const std::int64_t ignored = read_ignored(options);
  return {.measure =
              [ignored](const torch::Tensor& found, const torch::Tensor& target) {
                const Counted its = what_counts(found, target, ignored);
                const torch::Tensor loss =
                    F::cross_entropy(its.output, its.classes, F::CrossEntropyFuncOptions().reduction(torch::kSum));
                return MetricSum{loss.item<double>(), static_cast<double>(its.classes.numel())};
              },
          .finish = [](double mean) { return std::exp(mean); },
          .is_better_higher = false};
}

}  // namespace

double value_of(const Metric& metric, const MetricSum& seen) {
  const double mean = seen.sum / seen.count;
  return metric.finish ? metric.finish(mean) : mean;
}

LossRegistry::LossRegistry() : NamedTypes("loss") {
  NamedTypes::add({.name = "cross_entropy", .resolve = resolve_cross_entropy});
  NamedTypes::add({.name = "nll", .resolve = resolve_nll});
  tutti::add(*this, "bce", [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::binary_cross_entropy_with_logits(output, target);
  });
  tutti::add(*this, "mse",
             [](const torch::Tensor& output, const torch::Tensor& target) { return torch::mse_loss(output, target); });
  tutti::add(*this, "l1",
             [](const torch::Tensor& output, const torch::Tensor& target) { return torch::l1_loss(output, target); });
}

MetricRegistry::MetricRegistry() : NamedTypes("metric") {
  NamedTypes::add({.name = "accuracy", .resolve = resolve_accuracy});
  NamedTypes::add({.name = "top_k", .resolve = resolve_top_k});
  NamedTypes::add({.name = "mae", .resolve = resolve_mae});
  NamedTypes::add({.name = "perplexity", .resolve = resolve_perplexity});
}

}  // namespace tutti
