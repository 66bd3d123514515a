// Evaluations: all rows once, and the same bits whoever computes them.
#include <tutti/train/evaluation.hpp>

#include <numeric>

#include <gtest/gtest.h>
#include <tutti/graph/module_operator.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/predictions.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"

namespace tutti::evaluation_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

std::shared_ptr<const tutti::Run> run_of(std::int64_t rows) {
  Json document = small_run("unused");
  document["data"]["rows"] = rows;
  document["metrics"] = {"accuracy", "perplexity", {{"name", "top_k"}, {"k", 2}}};
  return std::make_shared<const tutti::Run>(read_small(document));
}

TEST(Evaluation, IsTheMeanOverAllRows) {
  const auto run = run_of(1111);
  const DataSplits data = open_data(*run);
  const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
  Evaluator evaluator(run, {});
  const Evaluation evaluation = evaluator.evaluate(net, data.train);
  EXPECT_TRUE(net->is_training());
  net->eval();
  std::vector<std::int64_t> numbers(1111);
  std::iota(numbers.begin(), numbers.end(), 0);
  const DataRows rows = data.train->rows(numbers);
  const torch::Tensor logits = net->forward(rows.inputs[0]);
  const double loss = torch::nn::functional::cross_entropy(logits, rows.target).item<double>();
  EXPECT_EQ(evaluation.rows, 1111);
  EXPECT_NEAR(evaluation.loss, loss, 1e-5);
  EXPECT_NEAR(evaluation.metrics[0].value, logits.argmax(1).eq(rows.target).to(torch::kFloat64).mean().item<double>(),
              1e-12);
  EXPECT_NEAR(evaluation.metrics[1].value, std::exp(loss), 1e-4);
}

TEST(Evaluation, HasTheSameBitsOnAnyNumberOfThreadsAndProcesses) {
  for (const std::int64_t rows : {1, 3, 255, 256, 257, 2000}) {
    const auto run = run_of(rows);
    const DataSplits data = open_data(*run);
    const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
    const Evaluation expected = Evaluator(run, {}).evaluate(net, data.train);
    for (const int threads : {1, 2, 3, 5}) {
      const Evaluation found = Evaluator(run, {.threads = threads}).evaluate(net, data.train);
      EXPECT_EQ(found.loss, expected.loss) << rows << " rows on " << threads;
      EXPECT_EQ(found.metrics, expected.metrics) << rows << " rows on " << threads;
    }
    run_ranks(3, [&](Communicator& world) {
      const auto own = std::make_shared<GraphModule>(run->graph, run->seed);
      const Evaluation found =
          Evaluator(run, {.threads = 1 + world.rank().value, .world = &world}).evaluate(own, data.train);
      EXPECT_EQ(found.loss, expected.loss) << rows;
      EXPECT_EQ(found.metrics, expected.metrics) << rows;
    });
  }
}

TEST(Evaluation, PutsEachPartOfTheModuleBackAsItWas) {
  const auto run = run_of(10);
  const DataSplits data = open_data(*run);
  const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
  net->named_modules("", false)["body.norm"]->eval();
  (void)Evaluator(run, {}).evaluate(net, data.train);
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(net->named_modules("", false)["body.norm"]->is_training());
  EXPECT_TRUE(net->named_modules("", false)["body.drop"]->is_training());
}

// Counts how often it was called, and adds that to what it is given.
struct Counting : torch::nn::Module {
  Counting() { calls = register_buffer("calls", torch::zeros({1})); }
  torch::Tensor calls;
};

Registry with_counting() {
  Registry registry;
  registry.operators.add(
      module_operator({.name = "counting",
                       .make = [](const Options&, std::span<const ValueSpec>) { return std::make_shared<Counting>(); },
                       .forward =
                           [](torch::nn::Module& module, std::span<const torch::Tensor> inputs) {
                             torch::Tensor& calls = dynamic_cast<Counting&>(module).calls;
                             calls += 1;
                             return inputs[0] * calls;
                           }}));
  return registry;
}

TEST(Evaluation, LeavesModulesThatCountTheirCallsAsTheyWere) {
  Json document = small_run("unused");
  document["data"]["rows"] = 2000;
  document["graph"]["nodes"][2]["inputs"] = {"counted"};
  document["graph"]["nodes"].push_back({{"id", "counted"}, {"op", "counting"}, {"inputs", {"body"}}});
  const auto run = std::make_shared<const tutti::Run>(read_small(document, with_counting()));
  const DataSplits data = open_data(*run);
  const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
  const torch::Tensor calls = net->named_buffers()["counted.calls"];
  const Evaluation expected = Evaluator(run, {}).evaluate(net, data.train);
  EXPECT_EQ(calls.item<float>(), 0);
  for (const int threads : {1, 2, 3}) {
    const Evaluation found = Evaluator(run, {.threads = threads}).evaluate(net, data.train);
    EXPECT_EQ(found.loss, expected.loss) << threads;
    EXPECT_EQ(found.metrics, expected.metrics) << threads;
  }
  const std::string predicted = prediction_npy(run, net, *data.train);
  EXPECT_EQ(prediction_npy(run, net, *data.train), predicted);
  EXPECT_EQ(calls.item<float>(), 0);
  calls.fill_(3);  // what it has counted in training is what an evaluation begins with
  EXPECT_NE(Evaluator(run, {.threads = 2}).evaluate(net, data.train).loss, expected.loss);
}

}  // namespace
}  // namespace tutti::evaluation_test
