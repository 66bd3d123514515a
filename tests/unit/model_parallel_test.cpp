// Model-parallel runs: graphs drawn at random and cut at random learn what one worker learns.
#include <atomic>
#include <cmath>
#include <deque>
#include <mutex>

#include <gtest/gtest.h>
#include <tutti/graph/module_operator.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "support/random_graphs.hpp"
#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::model_parallel_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using namespace std::chrono_literals;

const Json kDirect{{"protocol", "Direct"}};
Json pipeline(std::int64_t rows, const std::string& schedule = "1f1b") {
  return {{"protocol", "Pipeline"}, {"micro_batch_size", rows}, {"schedule", schedule}};
}

// A run of a random graph on one worker.
Json random_run(RandomStream& draws, const std::filesystem::path& output, const RandomGraphOptions& options = {}) {
  const Json optimizers[] = {{{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}},
                             {{"name", "adam"}, {"lr", 0.01}},
                             {{"name", "adagrad"}, {"lr", 0.01}}};
  Json document = small_run(output);
  document["graph"] = random_graph(draws, options);
  document["optimizer"] = optimizers[draws.below(3)];
  document["train"] = {{"steps", 7}, {"evaluate_every", 4}};
  if (draws.below(2) == 0) document["train"]["clip_norm"] = 0.5;
  if (draws.below(3) == 0) document["train"]["accumulate"] = 2;
  return document;
}

Json cut_run(Json document, RandomStream& draws, int workers, const Json& communication,
             const std::filesystem::path& output) {
  document["graph"]["strategy"] = random_cut(draws, document["graph"], workers, communication);
  document["workers"] = list_of_workers(workers);
  document["output"] = output.string();
  return document;
}

void expect_same_arrays(const std::filesystem::path& expected, const std::filesystem::path& found,
                        const std::string& what) {
  const ParameterSet all = arrays_in(expected);
  const ParameterSet others = arrays_in(found);
  ASSERT_EQ(all.size(), others.size()) << what;
  for (const NamedArray& array : all) {
    ASSERT_NE(others.find(array.name()), nullptr) << array.name() << ", " << what;
    EXPECT_TRUE(std::ranges::equal(array.bytes(), others.at(array.name()).bytes())) << array.name() << ", " << what;
  }
}

std::vector<double> losses_of(const Trained& trained) {
  std::vector<double> losses;
  for (const auto& step : trained.told->of<event::StepEnded>()) losses.push_back(step.loss);
  for (const auto& one : trained.told->of<event::EvaluationEnded>()) {
    losses.push_back(one.loss);
    for (const NamedNumber& metric : one.metrics) losses.push_back(metric.value);
  }
  return losses;
}

TEST(ModelParallel, LearnsTheSameBitsDirectlyHoweverTheGraphIsCut) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed});
    const Json document = random_run(draws, scratch / "whole");
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

// With a rate of 1 and SGD, what a step changes is the gradient.
TEST(ModelParallel, HasTheGradientOfTheBatchWhateverTheMicroBatchesAndTheSchedule) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ScratchFolder scratch;
    RandomStream draws({seed, 7});
    Json document = random_run(draws, scratch / "whole", {.batch_norm = false, .dropout = false});
    document["optimizer"] = {{"name", "sgd"}, {"lr", 1}};
    document["train"] = {{"steps", 1}};
    document["data"]["drop_last"] = true;
    const tutti::Run run = read_small(document);
    ParameterSet before;
    const GraphModule start(run.graph, run.seed);
    add_module(before, start);
    const Trained whole = train_small(run);
    const ParameterSet expected = arrays_in(whole.result.last_checkpoint);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      const int workers = 2 + static_cast<int>(draws.below(2));
      const auto rows = static_cast<std::int64_t>(schedule == std::string("interleaved") ? (workers == 2 ? 5 : 4)
                                                                                         : 1 + draws.below(10));
      const std::string what = fmt::format("seed {}, {}, {} workers, {} rows", seed, schedule, workers, rows);
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

// A subgraph that is replicated: its rows are shared out, and the gradients of all count.
TEST(ModelParallel, SharesTheRowsOfAReplicatedStageOut) {
  for (const int processes : {1, 3}) {
    for (const Json& communication : {kDirect, pipeline(4)}) {
      const ScratchFolder scratch;
      Json document = small_run(scratch / "whole");
      Json& body = document["graph"]["nodes"][1];
      body["nodes"] = Json::parse(R"([{"id": "act", "op": "tanh", "inputs": ["hidden"]},
                                      {"id": "wide", "op": "linear", "inputs": ["act"], "units": 5}])");
      document["train"] = {{"steps", 6}};
      const Trained whole = train_small(read_small(document));
      document["workers"] =
          Json::parse(R"([{"id": "a"}, {"id": "b", "tags": ["many"]}, {"id": "c", "tags": ["many"]}])");
      document["graph"]["strategy"] = Json::parse(
          R"({"type": "ModelParallel", "partitions": [{"node_ids": ["body"], "target": {"Tag": "many"}}]})");
      document["graph"]["strategy"]["communication"] = communication;
      document["graph"]["nodes"][1]["strategy"] = data_parallel(2);
      document["output"] = (scratch / "cut").string();
      const Trained cut = train_small(read_small(document), {.processes = processes});
      const std::vector<double> expected = losses_of(whole);
      const std::vector<double> found = losses_of(cut);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5);
      const ParameterSet weights = arrays_in(cut.result.last_checkpoint);
      for (const NamedArray& array : arrays_in(whole.result.last_checkpoint)) {
        if (array.type() != DataType::float32) continue;
        const std::span<const float> its = weights.at(array.name()).values<float>();
        for (std::size_t i = 0; i < its.size(); ++i)
          EXPECT_NEAR(its[i], array.values<float>()[i], 1e-5) << array.name();
      }
    }
  }
}

// --- failures ---

// Throws, or hangs, in the forward or the backward pass of one node, in the third step.
struct Trouble {
  std::string what = {};  // "throw", "hang"
  bool in_backward = false;
};

// What a backward pass calls, by number; kept as long as the program runs, since a graph may go without its backward
// pass.
std::function<void()>& act_of(std::size_t number) {
  static std::mutex mutex;
  static std::deque<std::function<void()>> acts;
  const std::lock_guard lock(mutex);
  if (number >= acts.size()) acts.resize(number + 1);
  return acts[number];
}

struct CallInBackward : torch::autograd::Function<CallInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& value,
                               std::int64_t number) {
    context->saved_data["number"] = number;
    return value.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    act_of(static_cast<std::size_t>(context->saved_data["number"].toInt()))();
    return {gradients[0], {}};
  }
};

Registry with_trouble(const std::shared_ptr<Trouble>& trouble, const std::shared_ptr<std::atomic<bool>>& is_over) {
  static std::atomic<std::int64_t> numbers{0};
  const std::int64_t number = numbers++;
  const auto act = [=] {
    if (trouble->what == "throw") throw std::runtime_error("out of luck");
    if (trouble->what == "hang") is_over->wait(false);
  };
  act_of(static_cast<std::size_t>(number)) = act;
  Registry registry;
  registry.operators.add({.name = "moody", .resolve = [=](const Options&, std::span<const ValueSpec> inputs) {
                            return Operator{
                                .output = inputs[0], .compute = [=](const OperatorCall& call) {
                                  const RandomDraws* draws = RandomDraws::current();
                                  const bool is_due = call.is_training && draws != nullptr && draws->key().step == 2;
                                  if (!is_due) return call.inputs[0].clone();
                                  if (!trouble->in_backward) act();
                                  return trouble->in_backward ? CallInBackward::apply(call.inputs[0], number)
                                                              : call.inputs[0].clone();
                                }};
                          }});
  return registry;
}

// A chain of three workers, with a node that makes trouble on one of them.
Json troubled_run(const std::filesystem::path& output, int worker, const Json& communication) {
  Json document = small_run(output);
  Json nodes = Json::array();
  std::string last = "point";
  Json partitions = Json::array();
  for (int w = 0; w < 3; ++w) {
    Json ids = Json::array();
    for (const char* op : {"linear", "moody"}) {
      if (op == std::string("moody") && w != worker) continue;
      const std::string id = fmt::format("{}{}", op, w);
      Json node{{"id", id}, {"op", op}, {"inputs", {last}}};
      if (op == std::string("linear")) node["units"] = w == 2 ? 3 : 4;
      nodes.push_back(node);
      ids.push_back(id);
      last = id;
    }
    partitions.push_back({{"node_ids", ids}, {"target", {{"WorkerId", fmt::format("w{}", w)}}}});
  }
  document["graph"] = {
      {"inputs", {{"point", {4}}}},
      {"nodes", nodes},
      {"outputs", {last}},
      {"strategy", {{"type", "ModelParallel"}, {"partitions", partitions}, {"communication", communication}}}};
  return document;
}

std::string failure_of(const tutti::Run& run, int processes) {
  try {
    (void)train_small(run, {.processes = processes});
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(none)";
}

TEST(ModelParallel, EndsOnAllWorkersWhereAStageThrows) {
  for (int worker = 0; worker < 3; ++worker) {
    for (const bool in_backward : {false, true}) {
      for (const int processes : {1, 3}) {
        for (const Json& communication : {kDirect, pipeline(3)}) {
          const ScratchFolder scratch;
          const auto trouble = std::make_shared<Trouble>(Trouble{.what = "throw", .in_backward = in_backward});
          const auto is_over = std::make_shared<std::atomic<bool>>(false);
          const tutti::Run run =
              read_small(troubled_run(scratch / "run", worker, communication), with_trouble(trouble, is_over));
          const std::string failure = failure_of(run, processes);
          EXPECT_NE(failure.find("out of luck"), std::string::npos) << failure;
          EXPECT_NE(failure.find(fmt::format("worker 'w{}': ", worker)), std::string::npos) << failure;
          if (in_backward) continue;
          EXPECT_NE(failure.find(fmt::format("the node 'moody{}'", worker)), std::string::npos) << failure;
        }
      }
    }
  }
}

// Each of them, with the node that it hangs at or whose value or gradient is missing; be it late in a step.
TEST(ModelParallel, EndsWithinTheDeadlineWhereAWorkerHangs) {
  for (const int processes : {1, 3}) {
    for (int worker = 0; worker < 3; ++worker) {
      for (const bool in_backward : {false, true}) {
        const ScratchFolder scratch;
        const auto trouble = std::make_shared<Trouble>(Trouble{.what = "hang", .in_backward = in_backward});
        const auto is_over = std::make_shared<std::atomic<bool>>(false);
        Json document = troubled_run(scratch / "run", worker, kDirect);
        document["train"]["deadline"] = 0.3;
        const tutti::Run run = read_small(document, with_trouble(trouble, is_over));
        const auto began = std::chrono::steady_clock::now();
        const std::string failure = failure_of(run, processes);
        EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
        const bool is_late = failure.find(fmt::format("worker 'w{}' is late", worker)) != std::string::npos;
        const bool is_missed =
            failure.find(fmt::format("for worker 'w{}' and the node '", worker)) != std::string::npos;
        EXPECT_TRUE(is_late || is_missed) << failure;
        const bool is_its_own = failure.find(fmt::format("the node 'linear{}'", worker)) != std::string::npos ||
                                failure.find(fmt::format("the node 'moody{}'", worker)) != std::string::npos;
        EXPECT_TRUE(!is_missed || is_its_own) << failure;
        *is_over = true;
        is_over->notify_all();
      }
    }
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
