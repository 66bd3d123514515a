// Model-parallel runs that fail: a node throws or hangs, on any worker and in any pass. Processes that are killed or
// stopped are in tests/fault/model_parallel_kill_test.sh.
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <tutti/nn/random_draws.hpp>

#include "support/model_parallel_runs.hpp"
#include "support/scratch_folder.hpp"

namespace tutti::model_parallel_faults_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using namespace std::chrono_literals;

// What one node does, and in which pass: of the third step, or of the first evaluation.
struct Trouble {
  enum class What { throws, hangs };
  enum class When { forward, backward, evaluation };
  What what = What::throws;
  When when = When::forward;
};
using What = Trouble::What;
using When = Trouble::When;
constexpr When kPasses[] = {When::forward, When::backward, When::evaluation};

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

Registry with_trouble(const Trouble& trouble, const std::shared_ptr<std::atomic<bool>>& is_over) {
  static std::atomic<std::int64_t> numbers{0};
  const std::int64_t number = numbers++;
  const auto act = [=] {
    if (trouble.what == What::throws) throw std::runtime_error("out of luck");
    is_over->wait(false);
  };
  act_of(static_cast<std::size_t>(number)) = act;
  const auto compute = [=](const OperatorCall& call) {
    const RandomDraws* draws = RandomDraws::current();
    const bool is_due = call.is_training && draws != nullptr && draws->key().step == 2;
    if (trouble.when == When::evaluation && !call.is_training && draws != nullptr) act();
    if (trouble.when == When::forward && is_due) act();
    if (trouble.when == When::backward && is_due) return CallInBackward::apply(call.inputs[0], number);
    return call.inputs[0].clone();
  };
  Registry registry;
  registry.operators.add({.name = "moody", .resolve = [=](const Options&, std::span<const ValueSpec> inputs) {
                            return Operator{.output = inputs[0], .compute = compute};
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

TEST(ModelParallelFaults, EndOnAllWorkersWhereAStageThrows) {
  for (int worker = 0; worker < 3; ++worker) {
    for (const When when : kPasses) {
      for (const int processes : {1, 3}) {
        for (const Json& communication : {kDirect, pipeline(3, "gpipe"), pipeline(3, "1f1b")}) {
          const ScratchFolder scratch;
          const auto is_over = std::make_shared<std::atomic<bool>>(false);
          const tutti::Run run = read_small(troubled_run(scratch / "run", worker, communication),
                                            with_trouble({.what = What::throws, .when = when}, is_over));
          const std::string failure = failure_of(run, processes);
          EXPECT_NE(failure.find("out of luck"), std::string::npos) << failure;
          EXPECT_NE(failure.find(fmt::format("worker 'w{}': ", worker)), std::string::npos) << failure;
          const std::string where = when == When::backward
                                        ? fmt::format("backward through the nodes 'linear{0}' to 'moody{0}'", worker)
                                        : fmt::format("the node 'moody{}'", worker);
          EXPECT_NE(failure.find(where), std::string::npos) << failure;
        }
      }
    }
  }
}

// Each of them, with the node that it hangs at or whose value or gradient is missing; be it late in a step.
TEST(ModelParallelFaults, EndWithinTheDeadlineWhereAWorkerHangs) {
  for (const int processes : {1, 3}) {
    for (int worker = 0; worker < 3; ++worker) {
      for (const When when : kPasses) {
        const ScratchFolder scratch;
        const auto is_over = std::make_shared<std::atomic<bool>>(false);
        Json document = troubled_run(scratch / "run", worker, kDirect);
        document["train"]["deadline"] = 0.3;
        const tutti::Run run = read_small(document, with_trouble({.what = What::hangs, .when = when}, is_over));
        const auto began = std::chrono::steady_clock::now();
        const std::string failure = failure_of(run, processes);
        EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
        const bool is_late = failure.find(fmt::format("worker 'w{}' is late", worker)) != std::string::npos;
        const bool is_missed =
            failure.find(fmt::format("for worker 'w{}' and the node '", worker)) != std::string::npos;
        EXPECT_TRUE(is_late || is_missed) << failure;
        const bool is_its_own = failure.find(fmt::format("the node 'linear{}'", worker)) != std::string::npos ||
                                failure.find(fmt::format("the node 'moody{}'", worker)) != std::string::npos;
        EXPECT_TRUE(is_its_own ||
                    failure.find(fmt::format("the nodes 'linear{}' to 'moody{}'", worker, worker)) != std::string::npos)
            << failure;
        *is_over = true;
        is_over->notify_all();
      }
    }
  }
}

}  // namespace
}  // namespace tutti::model_parallel_faults_test
