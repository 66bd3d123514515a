// Graphs that are cut: users' modules, scripts, several inputs and outputs, values of whole numbers, and stages that
// are computed twice.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <tutti/graph/module_operator.hpp>

#include "support/model_parallel_runs.hpp"
#include "support/scratch_folder.hpp"

namespace tutti::model_parallel_graphs_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

// However it is cut, on threads and on processes, from the beginning and after an interruption.
void expect_same_bits(const Json& document, const Registry& registry = Registry()) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 11});
    Json alone = document;
    alone["output"] = (scratch / "whole").string();
    const Trained whole = train_small(read_small(alone, registry));
    const int workers = 2 + static_cast<int>(draws.below(2));
    const int processes = draws.below(2) == 0 ? workers : 1;
    const Json parts = cut_run(document, draws, workers, kDirect, scratch / "cut");
    const std::string what = fmt::format("seed {}, {} workers on {}", seed, workers, processes);
    const Trained cut = train_small(read_small(parts, registry), {.processes = processes});
    EXPECT_EQ(losses_of(cut), losses_of(whole)) << what << "\n" << parts["graph"]["strategy"].dump(1);
    expect_same_arrays(whole.result.last_checkpoint, cut.result.last_checkpoint, what);
    Json again = parts;
    again["output"] = (scratch / "again").string();
    (void)train_small(read_small(again, registry), {.interrupt_at = 5});
    const Trained rest = train_small(read_small(again, registry), {.processes = processes, .resume = true});
    expect_same_arrays(whole.result.last_checkpoint, rest.result.last_checkpoint, what + ", resumed");
    if (::testing::Test::HasFailure()) return;
  }
}

// In micro-batches, too, but for the order of sums.
void expect_close_in_pipelines(const Json& document, const Registry& registry = Registry()) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const ScratchFolder scratch;
    RandomStream draws({12});
    Json alone = document;
    alone["output"] = (scratch / "whole").string();
    const Trained whole = train_small(read_small(alone, registry));
    for (const int processes : {1, 3}) {
      const Json parts = cut_run(document, draws, 3, pipeline(4, schedule), scratch / fmt::format("cut{}", processes));
      const Trained cut = train_small(read_small(parts, registry), {.processes = processes});
      expect_close(whole, cut, fmt::format("{} on {}", schedule, processes), 1e-4);
    }
  }
}

struct Normed : torch::nn::Module {
  Normed(std::int64_t inputs, std::int64_t units)
      : linear(register_module("linear", torch::nn::Linear(inputs, units))),
        norm(register_module("norm", torch::nn::BatchNorm1d(units))) {}
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};

TEST(ModelParallelGraphs, MayHaveModulesAndScriptsInTheirStages) {
  Registry registry;
  registry.operators.add(module_operator({.name = "normed",
                                          .make =
                                              [](const Options& options, std::span<const ValueSpec> inputs) {
                                                return std::make_shared<Normed>(inputs[0].shape.back(),
                                                                                options.integer("units", {.min = 1}));
                                              },
                                          .forward =
                                              [](torch::nn::Module& module, std::span<const torch::Tensor> inputs) {
                                                auto& its = static_cast<Normed&>(module);
                                                return torch::tanh(its.norm(its.linear(inputs[0])));
                                              }}));
  Json document = small_run("");
  document["graph"] = Json::parse(R"({"inputs": {"point": [4]}, "nodes": [
    {"id": "first", "op": "normed", "inputs": ["point"], "units": 4},
    {"id": "script", "op": "torchscript", "inputs": ["first"]},
    {"id": "second", "op": "normed", "inputs": ["first"], "units": 5},
    {"id": "both", "op": "concat", "inputs": ["script", "second"]},
    {"id": "logits", "op": "linear", "inputs": ["both"], "units": 3}], "outputs": ["logits"]})");
  document["graph"]["nodes"][1]["file"] = TUTTI_VECTORS "/script_net.pt";
  document["train"] = {{"steps", 8}};
  expect_same_bits(document, registry);
}

// Words are whole numbers, and so is which of them a node chooses.
TEST(ModelParallelGraphs, MayHaveSeveralInputsAndWholeNumbersBetweenWorkers) {
  Registry registry;
  registry.data_sources.add(
      {.name = "sentences", .resolve = [](const Options&) {
         const auto make = [](std::int64_t count, std::uint64_t seed) {
           RandomStream draws({seed});
           torch::Tensor words = torch::empty({count, 5}, torch::kInt64);
           torch::Tensor lengths = torch::empty({count, 2});
           torch::Tensor kinds = torch::empty({count}, torch::kInt64);
           for (std::int64_t i = 0; i < count; ++i) {
             kinds.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(draws.below(3));
             for (std::int64_t k = 0; k < 5; ++k)
               words.data_ptr<std::int64_t>()[5 * i + k] = static_cast<std::int64_t>(draws.below(7));
             for (std::int64_t k = 0; k < 2; ++k)
               lengths.data_ptr<float>()[2 * i + k] = static_cast<float>(draws.normal());
           }
           return std::make_shared<TensorDataset>(std::vector{words, lengths}, kinds);
         };
         return DataSource{.description = {.inputs = {{"words", {.shape = {5}, .type = ValueType::int64}},
                                                      {"lengths", {.shape = {2}}}},
                                           .target = {.shape = {}, .type = ValueType::int64},
                                           .classes = 3},
                           .open = [=] { return DataSplits{.train = make(43, 1), .test = make(20, 2)}; }};
       }});
  registry.operators.add({.name = "choose", .resolve = [](const Options&, std::span<const ValueSpec>) {
                            return Operator{
                                .output = {.shape = {1}, .type = ValueType::int64},
                                .compute = [](const OperatorCall& call) { return call.inputs[0].argmax(1, true); }};
                          }});
  Json document = small_run("");
  document["data"] = {{"source", "sentences"}, {"batch_size", 10}};
  // Inputs are in another order than the data's.
  document["graph"] = Json::parse(R"({"inputs": {"lengths": [2], "words": {"shape": [5], "type": "int64"}}, "nodes": [
    {"id": "embedded", "op": "embedding", "inputs": ["words"], "entries": 7, "units": 3},
    {"id": "flat", "op": "flatten", "inputs": ["embedded"]},
    {"id": "scaled", "op": "linear", "inputs": ["lengths"], "units": 4},
    {"id": "chosen", "op": "choose", "inputs": ["scaled"]},
    {"id": "again", "op": "embedding", "inputs": ["chosen"], "entries": 7, "units": 3, "tied": {"weight": "embedded.weight"}},
    {"id": "once", "op": "flatten", "inputs": ["again"]},
    {"id": "others", "op": "embedding", "inputs": ["words"], "entries": 7, "units": 2},
    {"id": "sum", "op": "mean", "inputs": ["others"], "dim": 0},
    {"id": "all", "op": "concat", "inputs": ["flat", "scaled", "once", "sum", "lengths"]},
    {"id": "logits", "op": "linear", "inputs": ["all"], "units": 3}], "outputs": ["logits"]})");
  document["train"] = {{"steps", 8}};
  expect_same_bits(document, registry);
  expect_close_in_pipelines(document, registry);
}

// The loss is of the first one, which others come after; what only others need is computed, and not trained.
TEST(ModelParallelGraphs, MayHaveSeveralOutputs) {
  Json document = small_run("");
  document["graph"] = Json::parse(R"({"inputs": {"point": [4]}, "nodes": [
    {"id": "hidden", "op": "linear", "inputs": ["point"], "units": 6},
    {"id": "act", "op": "tanh", "inputs": ["hidden"]},
    {"id": "logits", "op": "linear", "inputs": ["act"], "units": 3},
    {"id": "beside", "op": "linear", "inputs": ["hidden"], "units": 4},
    {"id": "norm", "op": "batch_norm", "inputs": ["beside"]},
    {"id": "odds", "op": "softmax", "inputs": ["logits"]},
    {"id": "after", "op": "linear", "inputs": ["odds"], "units": 2}], "outputs": ["logits", "norm", "hidden", "after"]})");
  document["train"] = {{"steps", 8}};
  expect_same_bits(document);
  document["graph"]["nodes"][4]["op"] = "gelu";  // batch norm takes its statistics over a micro-batch
  expect_close_in_pipelines(document);
}

TEST(ModelParallelGraphs, LearnTheSameBitsInAPipelineWhereStagesAreComputedTwice) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 5});
    Json document = random_run(draws, scratch / "run");
    document["data"]["drop_last"] = true;  // of batches of 10 rows, no micro-batch has a single one
    const int workers = 2 + static_cast<int>(draws.below(2));
    const Json communication = pipeline(seed % 2 == 0 ? 5 : 4, seed % 3 == 0 ? "gpipe" : "1f1b");
    Json parts = cut_run(document, draws, workers, communication, scratch / "once");
    const Trained once = train_small(read_small(parts));
    parts["graph"]["strategy"]["recompute"] = true;
    parts["output"] = (scratch / "twice").string();
    const Trained twice = train_small(read_small(parts), {.processes = draws.below(2) == 0 ? workers : 1});
    const std::string what = fmt::format("seed {}, {} workers", seed, workers);
    EXPECT_EQ(losses_of(once), losses_of(twice)) << what;
    expect_same_arrays(once.result.last_checkpoint, twice.result.last_checkpoint, what);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::model_parallel_graphs_test
