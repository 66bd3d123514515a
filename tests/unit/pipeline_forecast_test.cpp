// What is told of a model-parallel run before it runs: partitions that are found, traffic, live activations, time.
#include <tutti/train/pipeline_forecast.hpp>

#include <cmath>
#include <set>

#include <gtest/gtest.h>
#include <tutti/train/batch.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/found_partitions.hpp>

#include "support/model_parallel_runs.hpp"
#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::pipeline_forecast_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

// A chain of linear nodes, of which each worker is to have some.
Json chain_run(const std::filesystem::path& output, const std::vector<std::vector<int>>& nodes_of,
               const Json& communication) {
  Json document = small_run(output);
  Json nodes = Json::array();
  Json partitions = Json::array();
  int count = 0;
  for (std::size_t w = 0; w < nodes_of.size(); ++w) {
    Json ids = Json::array();
    for (const int node : nodes_of[w]) ids.push_back(fmt::format("n{}", node));
    partitions.push_back({{"node_ids", ids}, {"target", {{"WorkerId", fmt::format("w{}", w)}}}});
    count += static_cast<int>(nodes_of[w].size());
  }
  for (int n = 0; n < count; ++n) {
    nodes.push_back({{"id", fmt::format("n{}", n)},
                     {"op", "linear"},
                     {"inputs", {n == 0 ? "point" : fmt::format("n{}", n - 1)}},
                     {"units", n + 1 == count ? 3 : 8}});
  }
  document["data"]["batch_size"] = 16;
  document["graph"] = {
      {"inputs", {{"point", {4}}}},
      {"nodes", nodes},
      {"outputs", {fmt::format("n{}", count - 1)}},
      {"strategy", {{"type", "ModelParallel"}, {"partitions", partitions}, {"communication", communication}}}};
  return document;
}

NodeCosts even_costs(const tutti::Run& run, std::int64_t rows) {
  return {.rows = rows, .nodes = std::vector<NodeCost>(run.graph.nodes().size(), {1, 2}), .update_of_element = 0};
}

TEST(PipelineForecast, TellsTheTrafficOfAChain) {
  const ScratchFolder scratch;
  const tutti::Run run = read_small(chain_run(scratch / "run", {{0}, {1, 2}}, kDirect));
  const std::vector<PipelineTraffic> traffic = traffic_of(run);
  ASSERT_EQ(traffic.size(), 2u);
  EXPECT_EQ(std::pair(traffic[0].from, traffic[0].to), std::pair(0, 1));
  EXPECT_EQ(traffic[0].values, 16 * 8 * 4);  // rows of eight numbers of four bytes
  EXPECT_EQ(traffic[0].gradients, 0);
  EXPECT_EQ(traffic[0].nodes, std::vector<std::size_t>{0});
  EXPECT_EQ(std::pair(traffic[1].from, traffic[1].to), std::pair(1, 0));
  EXPECT_EQ(traffic[1].values, 0);
  EXPECT_EQ(traffic[1].gradients, 16 * 8 * 4);
  EXPECT_EQ(footprint_of(run).moved, 2 * 16 * 8 * 4);
}

// A value that goes to two workers goes twice; parameters that two have travel as gradients, and back as new values.
TEST(PipelineForecast, TellsTheTrafficOfBranchesAndTies) {
  const ScratchFolder scratch;
  Json document = chain_run(scratch / "run", {{0}, {1}, {2}}, kDirect);
  document["graph"]["nodes"] = Json::parse(R"([
    {"id": "n0", "op": "linear", "inputs": ["point"], "units": 4},
    {"id": "n1", "op": "linear", "inputs": ["n0"], "units": 4, "tied": "n0"},
    {"id": "both", "op": "add", "inputs": ["n0", "n1"]},
    {"id": "n2", "op": "linear", "inputs": ["both"], "units": 3}])");
  document["graph"]["strategy"]["partitions"][2]["node_ids"] = {"both", "n2"};
  double values = 0;
  double gradients = 0;
  double parameters = 0;
  for (const PipelineTraffic& traffic : traffic_of(read_small(document))) {
    values += traffic.values;
    gradients += traffic.gradients;
    parameters += traffic.parameters;
  }
  const double value = 16 * 4 * 4;
  EXPECT_EQ(values, 3 * value);  // n0 to w1 and w2, n1 to w2
  EXPECT_EQ(gradients, 3 * value);
  EXPECT_EQ(parameters, 2 * (4 * 4 + 4) * 4);  // a weight and a bias
}

// As the schedule's own bubble, where moving costs next to nothing.
TEST(PipelineForecast, FollowsTheSchedule) {
  const ScratchFolder scratch;
  for (const std::int64_t rows : {16, 8, 4, 2, 1}) {
    const double micro_batches = 16.0 / static_cast<double>(rows);
    const tutti::Run run = read_small(chain_run(scratch / "run", {{0, 1}, {2, 3}}, pipeline(rows)));
    const PipelineForecast forecast = forecast_pipeline(run, even_costs(run, rows));
    EXPECT_EQ(forecast.micro_batches, 16 / rows);
    EXPECT_NEAR(forecast.bubble, 1 / (micro_batches + 1), 1e-4);
    EXPECT_NEAR(forecast.seconds, 6 * (micro_batches + 1), 1e-2);  // 2 nodes of 3 seconds
    EXPECT_NEAR(forecast.busy[0], 6 * micro_batches, 1e-2);
    EXPECT_EQ(forecast.live[0].micro_batches, std::min<std::int64_t>(2, 16 / rows));
    EXPECT_EQ(forecast.live[1].micro_batches, 1);
    // What comes in and what is computed: 4 and two times 8 numbers in the first stage.
    EXPECT_EQ(forecast.live[0].bytes, static_cast<double>(forecast.live[0].micro_batches * rows * (4 + 8 + 8) * 4));
  }
}

TEST(PipelineForecast, KeepsLessAndTakesLongerWhereItComputesAnew) {
  const ScratchFolder scratch;
  Json document = chain_run(scratch / "run", {{0, 1}, {2, 3}}, pipeline(4));
  const tutti::Run kept = read_small(document);
  document["graph"]["strategy"]["recompute"] = true;
  const tutti::Run anew = read_small(document);
  const PipelineForecast before = forecast_pipeline(kept, even_costs(kept, 4));
  const PipelineForecast after = forecast_pipeline(anew, even_costs(anew, 4));
  EXPECT_NEAR(after.seconds, before.seconds * 4 / 3, 1e-2);
  EXPECT_LT(after.live[0].bytes, before.live[0].bytes / 2);
}

TEST(PipelineForecast, KnowsAllButTheTimesWithoutCosts) {
  const ScratchFolder scratch;
  const PipelineForecast forecast =
      forecast_pipeline(read_small(chain_run(scratch / "run", {{0, 1}, {2, 3}}, pipeline(4))));
  EXPECT_EQ(forecast.cut.stages.size(), 2u);
  EXPECT_EQ(forecast.live.size(), 2u);
  EXPECT_TRUE(forecast.stages.empty());
}

TEST(NodeCosts, AreMeasuredForEveryNodeOfRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 3});
    const tutti::Run run = read_small(random_run(draws, scratch / "run"));
    const NodeCosts costs = measure_node_costs(run, *open_data(run).train);
    EXPECT_EQ(costs.rows, 10);
    ASSERT_EQ(costs.nodes.size(), run.graph.nodes().size());
    double backward = 0;
    for (const NodeCost& cost : costs.nodes) {
      EXPECT_GT(cost.forward, 0);
      EXPECT_GE(cost.backward, 0);
      backward += cost.backward;
    }
    EXPECT_GT(backward, 0);
    EXPECT_GT(costs.update_of_element, 0);
  }
}

// --- partitions that are found ---

Json with_auto_partition(Json document, int workers, const Json& communication) {
  document["graph"]["strategy"] = {
      {"type", "ModelParallel"}, {"auto_partition", {{"workers", workers}}}, {"communication", communication}};
  return document;
}

TEST(FoundPartitions, CutAChainWhereItIsBalanced) {
  const ScratchFolder scratch;
  const tutti::Run run =
      read_small(with_auto_partition(chain_run(scratch / "run", {{0, 1, 2, 3, 4, 5}}, kDirect), 2, pipeline(4)));
  ASSERT_TRUE(wants_partitions(run));
  NodeCosts costs = even_costs(run, 4);
  costs.nodes[0] = {3, 6};
  const tutti::Run found = with_found_partitions(run, costs);
  EXPECT_FALSE(wants_partitions(found));
  const auto& partitions = std::get<strategy::ModelParallel>(found.graph.effective_strategy()).partitions;
  ASSERT_EQ(partitions.size(), 2u);
  EXPECT_EQ(partitions[0].node_ids, (std::vector<std::string>{"n0", "n1"}));
  EXPECT_EQ(partitions[1].node_ids, (std::vector<std::string>{"n2", "n3", "n4", "n5"}));
}

// Every node has its place, and the file that is written back is the same run.
TEST(FoundPartitions, AreWholeAndCanBeWrittenBack) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 4});
    const int workers = 1 + static_cast<int>(draws.below(4));
    const tutti::Run run =
        read_small(with_auto_partition(random_run(draws, scratch / "run"), workers, pipeline(1 + draws.below(10))));
    NodeCosts costs{.rows = 5, .nodes = {}, .update_of_element = 1e-9};
    for (std::size_t n = 0; n < run.graph.nodes().size(); ++n)
      costs.nodes.push_back({1e-3 * draws.uniform(), 1e-3 * draws.uniform()});
    const tutti::Run found = with_found_partitions(run, costs);
    const auto& strategy = std::get<strategy::ModelParallel>(found.graph.effective_strategy());
    std::multiset<std::string> placed;
    for (const strategy::Partition& one : strategy.partitions) placed.insert(one.node_ids.begin(), one.node_ids.end());
    std::multiset<std::string> all;
    for (const GraphNode& node : run.graph.nodes()) all.insert(node.path);
    EXPECT_EQ(placed, all);
    const tutti::Run again = read_small(*found.resolved);
    EXPECT_EQ(again.graph.effective_strategy(), found.graph.effective_strategy());
    EXPECT_EQ(again.workers, found.workers);
    EXPECT_EQ(*again.resolved, *found.resolved);
  }
}

TEST(FoundPartitions, TrainToTheSameBitsAsOneWorker) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 5});
    Json document = random_run(draws, scratch / "whole");
    const Trained whole = train_small(read_small(document));
    document["output"] = (scratch / "cut").string();
    const int workers = 2 + static_cast<int>(draws.below(2));
    const int processes = seed % 2 == 0 ? 1 : workers;
    const Trained cut =
        train_small(read_small(with_auto_partition(document, workers, kDirect)), {.processes = processes});
    expect_same_arrays(whole.result.last_checkpoint, cut.result.last_checkpoint, fmt::format("seed {}", seed));
    const JsonDocument written = JsonDocument::read_file(scratch / "cut/run.json");
    EXPECT_FALSE(written.root().at("graph").at("strategy").find("auto_partition"));
    EXPECT_GT(written.root().at("graph").at("strategy").at("partitions").size(), 0u);
    const std::string engine = cut.told->of<event::RunStarted>().front().engine;
    EXPECT_NE(engine.find("; found: w0 has "), std::string::npos) << engine;
  }
}

TEST(FoundPartitions, WarnOfWorkersThatHaveNothingToDo) {
  const ScratchFolder scratch;
  const tutti::Run run = read_small(with_auto_partition(chain_run(scratch / "run", {{0, 1}}, kDirect), 4, kDirect));
  const tutti::Run found = with_found_partitions(run, even_costs(run, 16));
  EXPECT_EQ(found.workers.size(), 4u);
  EXPECT_EQ(found.warnings.back(), "the graph is not worth 4 workers: 2 of them have nothing to do");
  const Trained trained = train_small(run);  // where one worker may have all of it
  EXPECT_EQ(trained.result.step, 14);
  bool is_told = false;
  for (const auto& warned : trained.told->of<event::Warned>())
    is_told = is_told || warned.sentence.starts_with("the graph is not worth 4 workers: ");
  EXPECT_TRUE(is_told);
}

TEST(FoundPartitions, AreRefusedWhereTheyCannotBe) {
  const ScratchFolder scratch;
  Json document = with_auto_partition(small_run(scratch / "run"), 3, kDirect);
  document["workers"] = list_of_workers(2);
  EXPECT_NE(usage_error([&] {
              (void)read_small(document);
            }).find("graph.strategy.auto_partition.workers: expected at most the 2 that the file lists, found 3"),
            std::string::npos);
  document.erase("workers");
  document["graph"]["nodes"][1]["strategy"] = data_parallel(2);
  EXPECT_NE(usage_error([&] { (void)read_small(document); }).find("the subgraph 'body' has a strategy of its own"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti::pipeline_forecast_test
