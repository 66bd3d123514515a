// Model-parallel runs: graphs drawn at random and cut at random learn what one worker learns.
#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <tutti/nn/tensor_set.hpp>

#include "support/model_parallel_runs.hpp"
#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::model_parallel_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

TEST(ModelParallel, LearnsTheSameBitsDirectlyHoweverTheGraphIsCut) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed});
    Json document = random_run(draws, scratch / "whole");
    constexpr std::int64_t kBatchSizes[] = {6, 10, 12, 17};  // none leaves a row alone, which batch norm could not take
    document["data"]["batch_size"] = kBatchSizes[draws.below(std::size(kBatchSizes))];
    const Trained whole = train_small(read_small(document));
    for (const int workers : {2, 3}) {
      Json parts = cut_run(document, draws, workers, kDirect, scratch / fmt::format("cut{}", workers));
      if (draws.below(2) == 0) parts["graph"]["strategy"]["recompute"] = true;
      const int processes = draws.below(2) == 0 ? workers : 1;
      const std::string what = fmt::format("seed {}, {} workers on {}", seed, workers, processes);
      const Trained cut = train_small(read_small(parts), {.processes = processes});
      EXPECT_EQ(losses_of(cut), losses_of(whole)) << what << "\n" << parts["graph"].dump(1);
      expect_same_arrays(whole.result.last_checkpoint, cut.result.last_checkpoint, what);
      if (HasFailure()) return;
    }
  }
}

// Between threads, as between processes that share nothing else (tests/fault/data_store_test.sh).
TEST(ModelParallel, LearnsTheSameBitsThroughFiles) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 11});
    const Json document = random_run(draws, scratch / "whole");
    const Trained whole = train_small(read_small(document));
    Json store{{"protocol", "DataStore"}};
    if (seed % 2 == 0) store["path"] = (scratch / "deep/store").string();
    const Json parts = cut_run(document, draws, 2 + static_cast<int>(draws.below(2)), store, scratch / "cut");
    const Trained cut = train_small(read_small(parts));
    EXPECT_EQ(losses_of(cut), losses_of(whole)) << "seed " << seed;
    expect_same_arrays(whole.result.last_checkpoint, cut.result.last_checkpoint, fmt::format("seed {}", seed));
    EXPECT_FALSE(std::filesystem::exists(scratch / "deep"));
    EXPECT_FALSE(std::filesystem::exists(scratch / "cut/store"));
  }
}

// Every task of every worker, and no stage before that which it waits for.
TEST(ModelParallel, TellsWhatEachWorkerDidWhen) {
  for (const int processes : {1, 2}) {
    const ScratchFolder scratch;
    Json document = small_run(scratch / "run");
    document["graph"]["strategy"] = Json::parse(
        R"({"type": "ModelParallel", "partitions": [{"node_ids": ["hidden"], "target": {"WorkerId": "w0"}},
                                                    {"node_ids": ["body", "logits"], "target": {"WorkerId": "w1"}}]})");
    document["graph"]["strategy"]["communication"] = pipeline(5);
    document["train"] = {{"steps", 1}};
    const Trained trained = train_small(read_small(document), {.processes = processes, .trace = true});
    std::map<std::pair<int, std::string>, event::SpanEnded> spans;
    for (const auto& span : trained.told->of<event::SpanEnded>()) spans[{span.rank, span.name}] = span;
    for (const int worker : {0, 1}) {
      for (const char* name : {"forward 0", "forward 1", "backward 0", "backward 1", "agree", "update"}) {
        ASSERT_TRUE(spans.contains({worker, name})) << worker << ", " << name;
        EXPECT_LE(spans[std::pair(worker, std::string(name))].begin, spans[std::pair(worker, std::string(name))].end);
      }
    }
    const auto at = [&](int worker, const std::string& name) { return spans[{worker, name}]; };
    // Clocks of processes are only about the same.
    for (const std::string micro_batch : {"0", "1"}) {
      if (processes > 1) continue;
      EXPECT_LE(at(0, "forward " + micro_batch).end, at(1, "forward " + micro_batch).begin);
      EXPECT_LE(at(1, "backward " + micro_batch).end, at(0, "backward " + micro_batch).begin);
    }
  }
}

// With a rate of 1 and SGD, what a step changes is the gradient.
TEST(ModelParallel, HasTheGradientOfTheBatchWhateverTheMicroBatchesAndTheSchedule) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 7});
    Json document = random_run(draws, scratch / "whole", {.batch_norm = false, .dropout = false});
    document["optimizer"] = {{"name", "sgd"}, {"lr", 1}};
    document["train"] = {{"steps", 1}};
    document["data"]["drop_last"] = true;
    const auto batch = static_cast<std::int64_t>(6 + draws.below(10));
    document["data"]["batch_size"] = batch;
    const tutti::Run run = read_small(document);
    ParameterSet before;
    const GraphModule start(run.graph, run.seed);
    add_module(before, start);
    const Trained whole = train_small(run);
    const ParameterSet expected = arrays_in(whole.result.last_checkpoint);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      const int workers = 2 + static_cast<int>(draws.below(2));
      const std::int64_t rows = schedule == std::string("interleaved")
                                    ? (batch + workers - 1) / workers
                                    : static_cast<std::int64_t>(1 + draws.below(static_cast<std::uint64_t>(batch)));
      const std::string what =
          fmt::format("seed {}, {}, {} workers, {} rows of {}", seed, schedule, workers, rows, batch);
      const Json parts = cut_run(document, draws, workers, pipeline(rows, schedule), scratch / schedule);
      const Trained cut = train_small(read_small(parts), {.processes = draws.below(2) == 0 ? workers : 1});
      const ParameterSet found = arrays_in(cut.result.last_checkpoint);
      double difference = 0;
      double norm = 0;
      for (const NamedArray& array : before) {
        const std::span<const float> first = array.values<float>();
        const std::span<const float> whole_step = expected.at(array.name()).values<float>();
        const std::span<const float> cut_step = found.at(array.name()).values<float>();
        for (std::size_t i = 0; i < first.size(); ++i) {
          norm += std::pow(first[i] - whole_step[i], 2);
          difference += std::pow(whole_step[i] - cut_step[i], 2);
        }
      }
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << what << "\n" << parts["graph"].dump(1);
      EXPECT_NEAR(losses_of(cut).front(), losses_of(whole).front(), 1e-5) << what;
      if (HasFailure()) return;
    }
  }
}

TEST(ModelParallel, GoesOnUnderAnotherCutOrStrategyWithTheSameBits) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 3});
    const Json document = random_run(draws, scratch / "whole");
    const Trained whole = train_small(read_small(document));
    const Json first = cut_run(document, draws, 2, kDirect, scratch / "run");
    const auto stop_at = static_cast<std::int64_t>(1 + draws.below(5));
    (void)train_small(read_small(first), {.interrupt_at = stop_at});
    const Json second = cut_run(document, draws, 3, kDirect, scratch / "run");
    (void)train_small(read_small(second), {.processes = 3, .resume = true, .interrupt_at = 1});
    Json third = document;
    third["output"] = (scratch / "run").string();
    const Trained rest = train_small(read_small(third), {.resume = true});
    expect_same_arrays(whole.result.last_checkpoint, rest.result.last_checkpoint, fmt::format("seed {}", seed));
  }
}

// --- what is refused ---

std::string refused(const Json& document) {
  return usage_error([&] { (void)train_small(read_small(document)); });
}

TEST(ModelParallel, RefusesWorkersThatAreNot) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["graph"]["strategy"] =
      Json::parse(R"({"type": "ModelParallel", "partitions": [{"node_ids": ["body"], "target": {"WorkerId": "w1"}}],
                      "communication": {"protocol": "Direct"}})");
  Json empty = document;
  empty["workers"] = Json::array();
  EXPECT_NE(refused(empty).find("workers: expected at least one worker, found an empty array"), std::string::npos)
      << refused(empty);
  Json other = document;
  other["workers"] = list_of_workers(1);
  EXPECT_NE(refused(other).find("graph.strategy: partitions[0].target: there is no worker 'w1'"), std::string::npos)
      << refused(other);
  other["graph"]["strategy"]["partitions"][0]["target"] = {{"Tag", "big"}};
  EXPECT_NE(refused(other).find("no worker has the tag 'big'"), std::string::npos) << refused(other);
  Json twice = document;
  twice["workers"] = Json::parse(R"([{"id": "w1"}, {"id": "w1"}])");
  EXPECT_NE(refused(twice).find("the worker 'w1' is there twice"), std::string::npos) << refused(twice);
}

TEST(ModelParallel, RefusesMicroBatchesThatDoNotFit) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");  // 68 rows in batches of 10
  document["graph"]["strategy"] = Json::parse(
      R"({"type": "ModelParallel", "partitions": [{"node_ids": ["hidden"], "target": {"WorkerId": "w0"}},
                                                  {"node_ids": ["body", "logits"], "target": {"WorkerId": "w1"}}]})");
  document["graph"]["strategy"]["communication"] = pipeline(5, "interleaved");
  document["graph"]["nodes"][1]["nodes"].erase(0);
  document["graph"]["nodes"][1]["nodes"][0]["inputs"] = {"hidden"};
  EXPECT_EQ(losses_of(train_small(read_small(document))).size(), 14u + 2 * 3u);
  document["graph"]["strategy"]["communication"] = pipeline(4, "interleaved");
  EXPECT_EQ(
      refused(document),
      "a batch of 10 rows: the schedule interleaved: expected a multiple of 2 micro-batches, as there are 2 workers, "
      "found 3");
}

}  // namespace
}  // namespace tutti::model_parallel_test
