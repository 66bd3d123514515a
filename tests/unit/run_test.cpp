// Run files: what they are read into, and what is refused where.
#include <tutti/train/run.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "support/usage_error.hpp"

namespace tutti::run_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json example() {
  return Json::parse(R"({"seed": 7, "data": {"source": "fashion_mnist", "batch_size": 128},
    "graph": {"inputs": {"image": [1, 28, 28]}, "nodes": [
        {"id": "flat", "op": "flatten", "inputs": ["image"]},
        {"id": "hidden", "op": "linear", "inputs": ["flat"], "units": 256},
        {"id": "logits", "op": "linear", "inputs": ["hidden"], "units": 10}], "outputs": ["logits"],
      "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}},
    "loss": "cross_entropy", "metrics": ["accuracy", {"name": "top_k", "k": 3}],
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "train": {"epochs": 3}, "output": "runs/first"})");
}

Run read(const Json& document, const Registry& registry = Registry()) {
  return read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
}

TEST(Run, IsReadWithAllItsParts) {
  const tutti::Run run = read(example());
  EXPECT_EQ(run.seed, 7u);
  EXPECT_EQ(run.data.source, "fashion_mnist");
  EXPECT_EQ(run.data.batch_size, 128);
  EXPECT_EQ(run.loss_name, "cross_entropy");
  ASSERT_EQ(run.metrics.size(), 2u);
  EXPECT_EQ(run.metrics[1].name, "top_k");
  EXPECT_EQ(run.optimizer, OptimizerRule(Sgd{.lr = 0.1, .momentum = 0.9}));
  EXPECT_EQ(run.train.epochs, 3);
  EXPECT_EQ(run.output, "runs/first");
}

TEST(Run, HasDefaults) {
  Json document = example();
  for (const char* key : {"seed", "metrics", "train", "output"}) document.erase(key);
  const tutti::Run run = read(document);
  EXPECT_EQ(run.seed, 0u);
  EXPECT_EQ(run.train.epochs, 1);
  EXPECT_EQ(run.output, "runs/latest");
}

TEST(Run, RefusesWhatCannotBeAndNamesThePlace) {
  const auto refused = [](const std::string& pointer, const Json& value) {
    Json document = example();
    document[Json::json_pointer(pointer)] = value;
    return testing::usage_error([&] { (void)read(document); });
  };
  const std::vector<std::tuple<std::string, Json, std::string>> cases{
      {"/sed", 3, "did you mean \"seed\"?"},
      {"/seed", -1, ": seed: expected"},
      {"/data", 3, ": data: expected data, as in"},
      {"/data/source", "fashon_mnist", ": data.source: there is no data source 'fashon_mnist'; did you mean"},
      {"/data/batch_size", 0, ": data.batch_size: expected"},
      {"/data/batch_size", 1, ": data.batch_size: expected a row for each of 2 replicas, found 1"},
      {"/data/batchsize", 1, "did you mean \"batch_size\"?"},
      {"/graph/inputs/image", {28, 28}, ": graph.inputs.image: the data has rows of [1, 28, 28], found [28, 28]"},
      {"/graph/nodes/2/units", 9, ": loss: expected an output of the shape [10], for 10 classes, found [9]"},
      {"/loss", "mse", ": loss: expected an output and a target of float32"},
      {"/loss", "cross_entrpy", ": loss: there is no loss 'cross_entrpy'; did you mean 'cross_entropy'?"},
      {"/loss", {{"name", "cross_entropy"}, {"label_smoothing", 1}}, ": loss.label_smoothing: expected"},
      {"/loss", {{"name", "cross_entropy"}, {"smoothing", 1}}, ": loss: unknown key"},
      {"/loss", {{"name", "cross_entropy"}, {"class_weights", {1, 2}}}, ": loss.class_weights: expected 10 weights"},
      {"/metrics/0", "accurcy", ": metrics[0]: there is no metric 'accurcy'; did you mean 'accuracy'?"},
      {"/metrics/1", "accuracy",
       ": metrics[1]: the metric 'accuracy' is there twice; \"as\" gives one of them another"},
      {"/metrics/1/as", "accuracy", ": metrics[1]: the metric 'accuracy' is there twice"},
      {"/metrics/1/as", "top 3", ": metrics[1].as: as: a name is made of letters, digits and _, found 'top 3'"},
      {"/loss", 3, ": loss: expected a name, or an object with a name and options, found 3"},
      {"/loss", {{"name", "cross_entropy"}, {"as", "x"}}, ": loss: unknown key"},
      {"/loss",
       {{"name", "cross_entropy"}, {"class_weights", Json(10, 0)}},
       ": loss.class_weights: expected a class that counts for something"},
      {"/metrics/1/k", 11, ": metrics[1].k: expected"},
      {"/optimizer/name", "sdg", ": optimizer.name: expected"},
      {"/optimizer/lr", -1, ": optimizer.lr: expected a number of at least 0, found -1"},
      {"/optimizer/nesterov", true, "(no error)"},
      {"/optimizer", {{"name", "sgd"}}, ": optimizer: missing key \"lr\""},
      {"/optimizer", {{"name", "sgd"}, {"lr", 1}, {"nesterov", true}}, ": optimizer: sgd: "},
      {"/optimizer", {{"name", "adam"}, {"beta2", 1}}, ": optimizer.beta2: expected a number"},
      {"/graph/strategy", Json::parse(R"({"type": "ModelParallel", "partitions": [{"node_ids": ["hidden"],
        "target": {"WorkerId": "w0"}}], "communication": {"protocol": "Pipeline", "micro_batch_size": 129}})"),
       ": data.batch_size: expected the 129 rows of a micro-batch, found 128"},
      {"/optimizer/beta1", 0.9, ": optimizer: unknown key"},
      {"/optimizer/nesterov", 1, ": optimizer.nesterov: expected"},
      {"/schedule", "cosin", ": schedule: expected one of"},
      {"/train/steps", 0, ": train.steps: expected"},
      {"/train/epochs", 0, ": train.epochs: expected"},
      {"/train/epoch", 3, ": train: unknown key \"epoch\"; did you mean \"epochs\"?"},
      {"/train", Json::object(), "(no error)"},
      {"/train", {{"clip_norm", -1}}, ": train.clip_norm: expected"},
      {"/output", "", ": output: expected a folder"}};
  for (const auto& [pointer, value, message] : cases) {
    EXPECT_THAT(refused(pointer, value), HasSubstr(message)) << pointer;
    if (message == "(no error)") continue;
    EXPECT_THAT(refused(pointer, value), ::testing::StartsWith("run.json:1:")) << pointer;
  }
}

TEST(Run, OptimizersBecomeTorchs) {
  const auto options = [](const Json& document) {
    return torch_options(optimizer_from_json(JsonDocument::parse(document.dump()).root()));
  };
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop", "adagrad"})
    EXPECT_NE(options({{"name", name}, {"lr", 0.5}}), nullptr) << name;
}

// --- what users add ---

TEST(Registry, LossesMetricsAndDataOfUsersCanBeNamed) {
  Registry registry;
  registry.data_sources.add(
      {.name = "ramp", .resolve = [](const Options& options) {
         const std::int64_t rows = options.integer("rows", {.min = 1});
         return DataSource{
             .description = {.inputs = {{"x", {.shape = {2}}}}, .target = {.shape = {1}}}, .open = [rows] {
               const auto all =
                   std::make_shared<TensorDataset>(std::vector{torch::rand({rows, 2})}, torch::rand({rows, 1}));
               return DataSplits{.train = all, .test = all};
             }};
       }});
  registry.losses.add(
      {.name = "huber", .resolve = [](const Options& options, const ValueSpec&, const DataDescription&) {
         const double delta = options.number("delta", {.min = 0}, 1);
         return Loss{[delta](const torch::Tensor& output, const torch::Tensor& target) {
           return torch::huber_loss(output, target, 1, delta);
         }};
       }});
  registry.metrics.add({.name = "count", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) {
                          return Metric{.measure = [](const torch::Tensor& output, const torch::Tensor&) {
                            return MetricSum{static_cast<double>(output.size(0)), 1};
                          }};
                        }});
  registry.operators.add({.name = "twice", .resolve = [](const Options&, std::span<const ValueSpec> inputs) {
                            return Operator{.output = inputs[0],
                                            .compute = [](const OperatorCall& call) { return 2 * call.inputs[0]; }};
                          }});
  const Json document = Json::parse(R"({"data": {"source": "ramp", "rows": 10, "batch_size": 4},
      "graph": {"inputs": {"x": [2]}, "nodes": [{"id": "more", "op": "twice", "inputs": ["x"]},
                {"id": "y", "op": "linear", "inputs": ["more"], "units": 1}], "outputs": ["y"]},
      "loss": {"name": "huber", "delta": 0.5}, "metrics": ["count"], "optimizer": {"name": "adam"}})");
  const tutti::Run run = read(document, registry);
  const DataSplits data = run.data.opened_by.open();
  const std::vector<std::int64_t> numbers{9, 0, 3};
  const DataRows rows = data.train->rows(numbers);
  EXPECT_EQ(rows.inputs.front().size(0), 3);
  EXPECT_EQ(run.metrics.front().metric.measure(rows.target, rows.target).sum, 3);
  EXPECT_EQ(run.loss.compute(rows.target, rows.target).loss.item<double>(), 0);
  const std::vector<std::int64_t> beyond{10};
  EXPECT_THAT(testing::usage_error([&] { (void)data.train->rows(beyond); }),
              HasSubstr("there is no row 10: there are 10"));
  EXPECT_THAT(testing::usage_error([&] { (void)read(document); }), HasSubstr("there is no data source 'ramp'"));
}

TEST(Registry, WhatUsersFunctionsRefuseIsToldAtItsPlace) {
  Registry registry;
  registry.losses.add(
      {.name = "picky", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) -> Loss {
         throw UsageError("it is for pairs");
       }});
  Json document = example();
  document["loss"] = "picky";
  EXPECT_THAT(testing::usage_error([&] { (void)read(document, registry); }),
              ::testing::EndsWith(": loss: it is for pairs"));
  registry.losses.add(
      {.name = "broken", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) -> Loss {
         throw std::out_of_range("beyond\nthe end");
       }});
  document["loss"] = "broken";
  EXPECT_THAT(testing::usage_error([&] { (void)read(document, registry); }), ::testing::EndsWith(": loss: beyond"));
  registry.losses.add(
      {.name = "empty", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) { return Loss{}; }});
  document["loss"] = "empty";
  EXPECT_THAT(testing::usage_error([&] { (void)read(document, registry); }),
              ::testing::EndsWith(": loss: it was made without the function 'compute'"));
}

// --- losses and metrics ---

TEST(Loss, ClassWeightsCountBetweenRowsToo) {
  Json document = example();
  document["loss"] = {{"name", "cross_entropy"}, {"class_weights", {1, 2, 0, 1, 1, 1, 1, 1, 1, 1}}};
  const Loss loss = read(document).loss;
  const torch::Tensor output = torch::randn({6, 10}, torch::kFloat64);
  const torch::Tensor target = torch::tensor({0, 1, 1, 2, 2, 3}, torch::kInt64);
  const WeightedLoss whole = loss.compute(output, target);
  EXPECT_EQ(whole.weight, 1 + 2 + 2 + 1);
  double sum = 0;
  for (const auto& [first, count] : {std::pair{0, 2}, std::pair{2, 1}, std::pair{3, 2}, std::pair{5, 1}}) {
    const WeightedLoss part = loss.compute(output.narrow(0, first, count), target.narrow(0, first, count));
    sum += *part.weight * part.loss.item<double>();
  }
  EXPECT_NEAR(sum / *whole.weight, whole.loss.item<double>(), 1e-12);
  EXPECT_EQ(loss.compute(output.narrow(0, 3, 2), target.narrow(0, 3, 2)).weight, 0);  // and no number that is none
}

TEST(Loss, WhatIsIgnoredDoesNotCount) {
  for (const char* name : {"cross_entropy", "nll"}) {
    Json document = example();
    document["loss"] = name;
    const Loss loss = read(document).loss;
    const torch::Tensor output = torch::randn({4, 10}, torch::kFloat64).log_softmax(1);
    const WeightedLoss some = loss.compute(output, torch::tensor({3, -100, 4, -100}, torch::kInt64));
    EXPECT_EQ(some.weight, 2);
    EXPECT_NEAR(some.loss.item<double>(), -(output[0][3] + output[2][4]).item<double>() / 2, 1e-12);
    const WeightedLoss none = loss.compute(output, torch::full({4}, -100, torch::kInt64));
    EXPECT_EQ(none.weight, 0);
    EXPECT_EQ(none.loss.item<double>(), 0);
  }
  const Metric accuracy = read(example()).metrics.front().metric;
  const torch::Tensor output = torch::eye(10).narrow(0, 0, 3);
  const MetricSum sum = accuracy.measure(output, torch::tensor({0, -100, 1}, torch::kInt64));
  EXPECT_EQ(sum.sum, 1);
  EXPECT_EQ(sum.count, 2);
}

TEST(Metrics, OfOneNameAreToldApartByTheNamesTheyAreGiven) {
  Json document = example();
  document["metrics"].push_back({{"name", "top_k"}, {"k", 2}, {"as", "top_2"}});
  const tutti::Run run = read(document);
  ASSERT_EQ(run.metrics.size(), 3u);
  EXPECT_EQ(run.metrics[2].name, "top_2");
}

TEST(Metrics, AreMeansOverWhatTheyCount) {
  const DataDescription data{.inputs = {}, .target = {.shape = {}, .type = ValueType::int64}, .classes = 3};
  const ValueSpec output{.shape = {3}};
  const Options options(JsonDocument::parse(R"({"k": 2})").root());
  const torch::Tensor found = torch::tensor({{3., 2., 1.}, {1., 2., 3.}, {2., 3., 1.}, {1., 3., 2.}});
  const torch::Tensor target = torch::tensor({0, 0, 0, 1}, torch::kInt64);
  const MetricRegistry metrics;
  const auto mean = [&](const char* name) {
    const Metric metric = metrics.find(name)->resolve(options, output, data);
    const MetricSum sum = metric.measure(found, target);
    return metric.finish ? metric.finish(sum.sum / sum.count) : sum.sum / sum.count;
  };
  EXPECT_EQ(mean("accuracy"), 0.5);
  EXPECT_EQ(mean("top_k"), 0.75);
  EXPECT_NEAR(mean("perplexity"), std::exp(torch::nn::functional::cross_entropy(found, target).item<double>()), 1e-6);
}

TEST(Footprint, CountsWhatEveryReplicaHas) {
  const tutti::Run run = read(example());
  const Footprint footprint = footprint_of(run);
  const double bytes = 4.0 * (784 * 256 + 256 + 256 * 10 + 10);
  EXPECT_EQ(footprint.parameters, bytes);
  EXPECT_EQ(footprint.optimizer_state, bytes);
  EXPECT_EQ(footprint.gradients, 2 * bytes);
  EXPECT_EQ(footprint.moved, bytes);
  Json document = example();
  document["graph"]["strategy"] = Json::parse(R"({"type": "Local"})");
  EXPECT_EQ(footprint_of(read(document)).moved, 0);
}

TEST(Footprint, CountsWhatTravelsAfterCompressionAndByAlgorithm) {
  const auto moved = [](const Json& more, int replicas = 2) {
    Json document = example();
    document["graph"]["strategy"]["num_replicas"] = replicas;
    document["graph"]["strategy"]["aggregation"].update(more);
    return footprint_of(read(document)).moved.value();
  };
  const double elements = 784 * 256 + 256 + 256 * 10 + 10;
  // Slices are read from the other, and written there.
  EXPECT_EQ(moved({{"compression", "BFloat16"}}), 2 * 2 * elements);
  EXPECT_EQ(moved({{"algorithm", "SharedSlices"}}, 4), 2 * 4 * 3 * elements);
  EXPECT_EQ(moved({{"compression", "Float16"}, {"algorithm", "Ring"}}, 4), 2 * 2 * 3 * elements);
  // An index and a value of each, and at least one: 2007, 3, 26 and 1 of them, to everybody else.
  EXPECT_EQ(moved({{"compression", {{"TopK", 0.01}}}}, 3), 3 * 2 * 8 * (2007 + 3 + 26 + 1));
  EXPECT_EQ(moved({{"compression", {{"PowerSgd", 2}}}}), 2 * 4 * (2 * (784 + 256) + 2 * (256 + 10) + 256 + 10));
  EXPECT_EQ(moved({{"algorithm", "Centralized"}}, 4), 4 * 2 * 3 * elements);
  EXPECT_EQ(moved({{"logical_shards", 8}}, 4), 4 * 3 * elements);  // two neighbours are one part
  EXPECT_EQ(moved(Json::object(), 1), 0);
  Json served = example();
  served["graph"]["strategy"]["aggregation"] = {{"method", "ParameterServer"}};
  EXPECT_EQ(footprint_of(read(served)).moved, 2 * 2 * 4 * elements);
}

TEST(Footprint, CountsWhatTravelsBetweenPartitions) {
  Json document = example();
  document["graph"]["nodes"].push_back({{"id", "sum"}, {"op", "linear"}, {"inputs", {"hidden"}}, {"units", 10}});
  document["graph"]["nodes"].push_back({{"id", "last"}, {"op", "add"}, {"inputs", {"logits", "sum"}}});
  document["graph"]["outputs"] = {"last"};
  document["graph"]["strategy"] = Json::parse(R"({"type": "ModelParallel", "partitions": [
      {"node_ids": ["flat", "hidden"], "target": {"WorkerId": "w0"}},
      {"node_ids": ["logits", "sum"], "target": {"WorkerId": "w1"}}], "communication": {"protocol": "Direct"}})");
  // "hidden" goes to w1 once, for both; "logits" and "sum" come back to "last"; and their gradients.
  EXPECT_EQ(footprint_of(read(document)).moved, 2 * 4 * 128 * (256 + 10 + 10));
}

TEST(Footprint, CountsPrivateParametersAndBuffersForEachReplica) {
  Json document = example();
  document["graph"]["nodes"].push_back(Json::parse(R"({"id": "own", "op": "graph", "inputs": ["logits"],
      "strategy": {"type": "Local"}, "nodes": [{"id": "bias", "op": "linear", "inputs": ["logits"], "units": 10},
      {"id": "norm", "op": "batch_norm", "inputs": ["bias"], "affine": false}], "outputs": ["norm"]})"));
  document["graph"]["outputs"] = {"own"};
  const Footprint footprint = footprint_of(read(document));
  const double shared = 4.0 * (784 * 256 + 256 + 256 * 10 + 10);
  const double own = 4.0 * (10 * 10 + 10);
  const double buffers = 4.0 * (10 + 10) + 8;
  EXPECT_EQ(footprint.parameters, shared + 2 * (own + buffers));
  EXPECT_EQ(footprint.optimizer_state, shared + 2 * own);
  EXPECT_EQ(footprint.gradients, 2 * (shared + own));
  EXPECT_EQ(footprint.moved, shared);
}

}  // namespace
}  // namespace tutti::run_test
