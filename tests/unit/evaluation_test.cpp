// Evaluations: all rows once, and the same bits whoever computes them.
#include <tutti/train/evaluation.hpp>

#include <numeric>

#include <gtest/gtest.h>
#include <tutti/train/batch.hpp>

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

}  // namespace
}  // namespace tutti::evaluation_test
