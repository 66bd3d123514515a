// A small pipeline of three workers, threads of this process or a process each, one of which is killed or stopped at a
// moment of the fourth step that the test names, as `tutti train` would be.
//
//   model_parallel_worker <folder> begin|resume <micro-batch> [<worker> <signal> <moment>]
//
// Moments of a worker, where m is a micro-batch:
//   "forward in m", "forward out m"      the first, and the last, of its forward pass
//   "backward out m", "backward in m"    the same of its backward pass
//   "agree"                              all of them add the losses up, and update
//   "evaluate in", "evaluate out"        the evaluation after the step
//   "sum"                                all of them add up what they found
//   "checkpoint"                         what each has goes to the first of them
//
// Prints a digest of the last checkpoint; errors and exit codes are those of `tutti train`.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <torch/torch.h>
#include <tutti/c10d/join.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/transport/environment.hpp>

#include "support/train_runs.hpp"

namespace {

using namespace tutti;
using namespace tutti::testing;  // NOLINT: what this file is about

// What is to happen when, in this process.
struct Plan {
  int signal = 0;
  std::string moment = {};
};
Plan plan;
std::atomic<std::uint64_t> step = 0;  // of what this worker computed last
std::atomic<bool> is_evaluating = false;
constexpr std::uint64_t kStep = 3;  // whose moments are meant, and the evaluation and the checkpoint after it

void pass(const std::string& moment) {
  if (step == kStep + (is_evaluating ? 1 : 0) && plan.signal != 0 && moment == plan.moment) std::raise(plan.signal);
}

// Adds a parameter, so that its backward pass is called on the first worker, too.
struct Shift : torch::autograd::Function<Shift> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& value,
                               const torch::Tensor& shift, const std::string& moment) {
    context->saved_data["moment"] = moment;
    return value + shift;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    pass(context->saved_data["moment"].toStringRef());
    return {gradients[0], gradients[0].sum(0), {}};
  }
};

void add_watched(Registry& registry) {
  registry.operators.add(
      {.name = "watched", .resolve = [](const Options& options, std::span<const ValueSpec> inputs) {
         const std::string at = options.choice("at", {"in", "out"}, "in");
         return Operator{.output = inputs[0],
                         .parameters = {{.name = "shift", .shape = inputs[0].shape, .initial = initializer::Normal{}}},
                         .compute = [at](const OperatorCall& call) {
                           const RandomDrawsKey key = RandomDraws::current()->key();
                           step = key.step;
                           is_evaluating = !call.is_training;
                           if (is_evaluating) {
                             pass("evaluate " + at);
                             return call.inputs[0] + call.parameters[0];
                           }
                           pass(fmt::format("forward {} {}", at, key.shard));
                           return Shift::apply(call.inputs[0], call.parameters[0],
                                               fmt::format("backward {} {}", at, key.shard));
                         }};
       }});
}

// What all workers do together.
void watch_calls(const StepEvent& event) {
  if (event.step != 0) return;
  if (event.call == "all_reduce") pass(is_evaluating ? "sum" : "agree");
  if (event.call == "all_gather") pass("checkpoint");
}

// Each worker has a linear node with something on either side; the first two share their weights.
Json pipeline_run(const std::string& folder, std::int64_t micro_batch) {
  Json document = small_run(folder);
  Json nodes = Json::array();
  Json partitions = Json::array();
  std::string last = "point";
  const auto add = [&](Json node) {
    node["inputs"] = {last};
    last = node["id"];
    nodes.push_back(std::move(node));
  };
  for (int w = 0; w < 3; ++w) {
    add({{"id", fmt::format("in{}", w)}, {"op", "watched"}});
    add({{"id", fmt::format("linear{}", w)}, {"op", "linear"}, {"units", w == 2 ? 3 : 4}});
    if (w == 1) nodes.back()["tied"] = {{"weight", "linear0.weight"}};
    add({{"id", fmt::format("out{}", w)}, {"op", "watched"}, {"at", "out"}});
    partitions.push_back({{"node_ids", {fmt::format("in{}", w), fmt::format("linear{}", w), last}},
                          {"target", {{"WorkerId", fmt::format("w{}", w)}}}});
  }
  document["graph"] = {{"inputs", {{"point", {4}}}},
                       {"nodes", nodes},
                       {"outputs", {last}},
                       {"strategy",
                        {{"type", "ModelParallel"},
                         {"partitions", partitions},
                         {"communication", {{"protocol", "Pipeline"}, {"micro_batch_size", micro_batch}}}}}};
  document["data"]["batch_size"] = 12;
  document["optimizer"] = {{"name", "adam"}, {"lr", 0.01}};
  document["train"] = {{"steps", 6}, {"evaluate_every", 2}, {"clip_norm", 1}, {"deadline", 5}};
  return document;
}

void tell_digest(const std::filesystem::path& checkpoint) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  for (const NamedArray& array : arrays_in(checkpoint)) {
    for (const std::byte one : array.bytes()) digest = (digest ^ static_cast<std::uint64_t>(one)) * 0x100000001b3u;
  }
  fmt::print("digest {:016x}\n", digest);
}

void train_once(const std::string& folder, bool resume, std::int64_t micro_batch, Communicator* world) {
  Registry registry;
  add_watched(registry);
  const tutti::Run run = read_small(pipeline_run(folder, micro_batch), std::move(registry));
  const TrainResult result = train(run, Events(), {.world = world, .resume = resume});
  if (world == nullptr || world->rank() == Rank{0}) tell_digest(result.last_checkpoint);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 7) return 2;
  const std::string folder = argv[1];
  const bool resume = argv[2] == std::string("resume");
  const std::int64_t micro_batch = std::atoll(argv[3]);
  const std::optional<ProcessPlace> place = discover_place();
  if (argc == 7 && place && place->rank.value == std::atoi(argv[4])) plan = {std::atoi(argv[5]), argv[6]};
  try {
    if (!place) {
      train_once(folder, resume, micro_batch, nullptr);
    } else {
      run_rank(c10d::join(), [&](Communicator& world) { train_once(folder, resume, micro_batch, &world); },
               {.on_step = watch_calls});
    }
  } catch (const ToldElsewhere& error) {
    fmt::print("heard: {}\n", error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "tutti: {}\n", error.what());
    return 1;
  }
  return 0;
}
