// Stages of several replicas, in model-parallel runs: they learn what one worker learns, but for the order of sums.
#include <array>

#include <gtest/gtest.h>

#include "support/model_parallel_runs.hpp"
#include "support/scratch_folder.hpp"

namespace tutti::model_parallel_replicas_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

// Three subgraphs in a row, the first of which reads the data, and the last of which has the loss. The second has
// weights of the first. 61 rows in batches of 10: the last batch of an epoch, the seventh, has one row.
Json chain_run(const std::filesystem::path& output) {
  Json document = small_run(output);
  document["data"]["rows"] = 61;
  document["graph"] = Json::parse(R"({"inputs": {"point": [4]}, "nodes": [
    {"id": "front", "op": "graph", "inputs": ["point"], "nodes": [
        {"id": "wide", "op": "linear", "inputs": ["point"], "units": 4},
        {"id": "act", "op": "tanh", "inputs": ["wide"]}], "outputs": ["act"]},
    {"id": "body", "op": "graph", "inputs": ["front"], "nodes": [
        {"id": "wide", "op": "linear", "inputs": ["front"], "units": 4, "tied": {"weight": "front.wide.weight"}},
        {"id": "skip", "op": "add", "inputs": ["wide", "front"]}], "outputs": ["skip"]},
    {"id": "end", "op": "graph", "inputs": ["body"], "nodes": [
        {"id": "logits", "op": "linear", "inputs": ["body"], "units": 3}], "outputs": ["logits"]}],
    "outputs": ["end"]})");
  document["train"] = {{"steps", 9}, {"clip_norm", 0.5}};
  return document;
}

using Replicas = std::array<int, 3>;  // of each subgraph

// Each replica on a worker of its own, or all subgraphs on the same workers. Returns how many there are.
int spread(Json& document, const Replicas& replicas, const Json& communication, bool have_own) {
  Json workers = Json::array();
  Json partitions = Json::array();
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    Json& subgraph = document["graph"]["nodes"][s];
    const std::string tag = have_own ? subgraph["id"].get<std::string>() : "all";
    for (int r = have_own ? 0 : static_cast<int>(workers.size()); r < replicas[s]; ++r)
      workers.push_back({{"id", fmt::format("{}{}", tag, r)}, {"tags", {tag}}});
    partitions.push_back({{"node_ids", {subgraph["id"]}}, {"target", {{"Tag", tag}}}});
    if (replicas[s] > 1) subgraph["strategy"] = data_parallel(replicas[s]);
  }
  document["workers"] = workers;
  document["graph"]["strategy"] = {
      {"type", "ModelParallel"}, {"partitions", partitions}, {"communication", communication}};
  return static_cast<int>(workers.size());
}

const std::vector<Replicas> kReplicas{{1, 2, 1}, {2, 1, 1}, {1, 1, 2}, {1, 3, 1}, {2, 3, 1}, {3, 2, 1},
                                      {1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 2, 2}, {3, 3, 3}};

TEST(ModelParallelReplicas, LearnWhatOneWorkerLearnsOnWorkersOfTheirOwn) {
  for (const Json& communication : {kDirect, pipeline(4, "gpipe"), pipeline(3, "1f1b")}) {
    const ScratchFolder scratch;
    const Trained whole = train_small(read_small(chain_run(scratch / "whole")));
    for (const Replicas& replicas : kReplicas) {
      Json document = chain_run(scratch / fmt::format("cut{}", fmt::join(replicas, "")));
      const int workers = spread(document, replicas, communication, true);
      const int processes = replicas[1] == 2 ? workers : 1;
      const Trained cut = train_small(read_small(document), {.processes = processes});
      expect_close(whole, cut, fmt::format("replicas {}, {}", fmt::join(replicas, ", "), communication.dump()));
      if (HasFailure()) return;
    }
  }
}

TEST(ModelParallelReplicas, LearnWhatOneWorkerLearnsWhereWorkersHaveSeveralStages) {
  for (const Json& communication : {kDirect, pipeline(4)}) {
    const ScratchFolder scratch;
    const Trained whole = train_small(read_small(chain_run(scratch / "whole")));
    for (const Replicas& replicas : kReplicas) {
      Json document = chain_run(scratch / fmt::format("cut{}", fmt::join(replicas, "")));
      const int workers = spread(document, replicas, communication, false);
      const int processes = replicas[0] == 1 ? workers : 1;
      const Trained cut = train_small(read_small(document), {.processes = processes});
      expect_close(whole, cut, fmt::format("replicas {}, {}", fmt::join(replicas, ", "), communication.dump()));
      if (HasFailure()) return;
    }
  }
}

// There are more replicas than workers for them.
TEST(ModelParallelReplicas, MayShareAWorker) {
  const ScratchFolder scratch;
  const Trained whole = train_small(read_small(chain_run(scratch / "whole")));
  for (const int processes : {1, 2}) {
    Json document = chain_run(scratch / fmt::format("cut{}", processes));
    (void)spread(document, {1, 3, 2}, pipeline(4), false);
    document["workers"].erase(2);
    const Trained cut = train_small(read_small(document), {.processes = processes});
    expect_close(whole, cut, fmt::format("{} processes", processes));
  }
}

TEST(ModelParallelReplicas, GoOnWithTheSameBits) {
  for (const Replicas& replicas : {Replicas{1, 2, 1}, Replicas{2, 3, 2}}) {
    const ScratchFolder scratch;
    Json document = chain_run(scratch / "whole");
    const int workers = spread(document, replicas, pipeline(4), true);
    const Trained whole = train_small(read_small(document));
    document["output"] = (scratch / "run").string();
    (void)train_small(read_small(document), {.interrupt_at = 3});
    (void)train_small(read_small(document), {.processes = workers, .resume = true, .interrupt_at = 4});
    const Trained rest = train_small(read_small(document), {.resume = true});
    expect_same_arrays(whole.result.last_checkpoint, rest.result.last_checkpoint,
                       fmt::format("replicas {}", fmt::join(replicas, ", ")));
  }
}

// A stage has none of the options of DataParallel, and does not go on as though it had.
TEST(ModelParallelReplicas, RefuseOptionsThatNothingCarriesOut) {
  const ScratchFolder scratch;
  const auto refused = [&](const Json& stage) {
    Json document = chain_run(scratch / "run");
    (void)spread(document, {1, 2, 1}, kDirect, true);
    document["graph"]["nodes"][1]["strategy"].update(stage);
    return why_not_trainable(read_small(document), 1).value_or("");
  };
  const std::string refusal =
      "the subgraph 'body': inside ModelParallel, expected a plain AllReduce in each step, found ";
  EXPECT_EQ(refused(Json::object()), "");
  EXPECT_EQ(refused({{"sync_every", 5}}), refusal + "DataParallel: 2 replicas, AllReduce, every 5 steps");
  EXPECT_EQ(refused({{"sync_every", 5}, {"outer", {{"method", "FedAdam"}}}}),
            refusal + "DataParallel: 2 replicas, AllReduce, every 5 steps by FedAdam");
  EXPECT_EQ(refused({{"aggregation", {{"method", "AllReduce"}, {"compression", "Float16"}}}}),
            refusal + "DataParallel: 2 replicas, AllReduce (compression Float16)");
  EXPECT_EQ(refused({{"aggregation", {{"method", "ParameterServer"}, {"consistency", "asynchronous"}}}}),
            refusal + "DataParallel: 2 replicas, ParameterServer (consistency asynchronous)");
  EXPECT_EQ(refused({{"aggregation", {{"method", "Decentralized"}, {"topology", "ring"}}}}),
            refusal + "DataParallel: 2 replicas, Decentralized (topology ring)");
}

}  // namespace
}  // namespace tutti::model_parallel_replicas_test
