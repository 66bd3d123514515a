// Coordinators of one's own: what carries out {"type": "Custom", "coordinator": "vote", "config": {"voters": 3}}.
//
//   Registry registry;
//   registry.coordinators.add({.name = "vote", .resolve = [](const Options& config, const Run&) {
//     const std::int64_t voters = config.integer("voters", {.min = 1});
//     return Coordinator{.make = [=](const CoordinatorContext& context) -> std::unique_ptr<Stepper> {
//       return std::make_unique<Vote>(context, voters);
//     }};
//   }});
//   train(read_run(document.root(), registry), events);
//
// Vote is a Stepper (train/stepper.hpp), so that it has the same checkpoints and reports as the strategies of tutti.
// docs/custom.md tells how to write one; train/plugin.hpp how the command `tutti` gets it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <tutti/base/named_types.hpp>
#include <tutti/base/options.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti {

class Communicator;
class Events;
class GraphModule;
class Stepper;
struct Run;

// What a coordinator gets to train with. It lives as long as the Stepper that is made of it.
struct CoordinatorContext {
  std::shared_ptr<const Run> run;  // its graph, optimizer, loss and metrics, and how long it is
  DataSplits data;
  // Of several processes, which all make the same calls, each with a context of its own; null where there is one.
  Communicator* world = nullptr;
  // What people are to hear beyond the results of steps, from begin() on; on rank 0 alone somebody listens.
  const Events& events;
  // The run's graph with the weights that it begins with: those of --from, or else drawn from its seed.
  std::function<std::shared_ptr<GraphModule>()> make_net;
};

// A coordinator with the config of one run.
struct Coordinator {
  // Throws a UsageError for what cannot be trained so; nothing was written then.
  std::function<std::unique_ptr<Stepper>(const CoordinatorContext& context)> make = {};
  bool uses_world = false;  // it may run on several processes
};

struct CoordinatorType {
  std::string name;
  // Reads the config, the empty one where the run file has none, and refuses, at its place, what it cannot work with;
  // keys that it did not ask for are refused as well. Of the run all but search and phases has been read.
  std::function<Coordinator(const Options& config, const Run& run)> resolve;
};

// Empty: all of them are users'.
class CoordinatorRegistry : public NamedTypes<CoordinatorType> {
 public:
  CoordinatorRegistry() : NamedTypes("coordinator") {}
};

}  // namespace tutti
