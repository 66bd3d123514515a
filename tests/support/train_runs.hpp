// Small runs to train in tests: on threads, or on ranks that each do what a process would.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>
#include <tutti/base/safetensors.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/train/checkpoint.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::testing {

using Json = nlohmann::ordered_json;

// Points of four numbers, of three classes that can be told apart; the same each time.
inline void add_points(Registry& registry) {
  registry.data_sources.add({.name = "points", .resolve = [](const Options& options) {
                               const std::int64_t rows = options.integer("rows", {.min = 1}, 68);
                               const std::int64_t test_rows = options.integer("test_rows", {.min = 0}, 30);
                               const auto make = [](std::int64_t count, std::uint64_t seed) {
                                 RandomStream draws({seed});
                                 torch::Tensor points = torch::empty({count, 4});
                                 torch::Tensor kinds = torch::empty({count}, torch::kInt64);
                                 for (std::int64_t i = 0; i < count; ++i) {
                                   const auto kind = static_cast<std::int64_t>(draws.below(3));
                                   kinds.data_ptr<std::int64_t>()[i] = kind;
                                   for (std::int64_t k = 0; k < 4; ++k)
                                     points.data_ptr<float>()[4 * i + k] =
                                         static_cast<float>(draws.normal() + (k == kind ? 2 : 0));
                                 }
                                 return std::make_shared<TensorDataset>(std::vector{points}, kinds);
                               };
                               return DataSource{.description = {.inputs = {{"point", {.shape = {4}}}},
                                                                 .target = {.shape = {}, .type = ValueType::int64},
                                                                 .classes = 3},
                                                 .open = [=] {
                                                   DataSplits splits{.train = make(rows, 1)};
                                                   if (test_rows > 0) splits.test = make(test_rows, 2);
                                                   return splits;
                                                 }};
                             }});
}

// Batch norm and dropout, in a subgraph that may be private; the strategy is the caller's.
inline Json small_run(const std::filesystem::path& output) {
  Json run = Json::parse(R"({"seed": 5, "data": {"source": "points", "batch_size": 10},
    "graph": {"inputs": {"point": [4]}, "nodes": [
        {"id": "hidden", "op": "linear", "inputs": ["point"], "units": 6},
        {"id": "body", "op": "graph", "inputs": ["hidden"], "nodes": [
            {"id": "norm", "op": "batch_norm", "inputs": ["hidden"]},
            {"id": "act", "op": "relu", "inputs": ["norm"]},
            {"id": "drop", "op": "dropout", "inputs": ["act"], "p": 0.2},
            {"id": "wide", "op": "linear", "inputs": ["drop"], "units": 5}], "outputs": ["wide"]},
        {"id": "logits", "op": "linear", "inputs": ["body"], "units": 3}], "outputs": ["logits"]},
    "loss": "cross_entropy", "metrics": ["accuracy", "perplexity"],
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}, "train": {"steps": 14}})");
  run["output"] = output.string();
  return run;
}

inline Json data_parallel(int replicas, const Json& all_reduce = Json::object()) {
  Json aggregation{{"method", "AllReduce"}};
  aggregation.update(all_reduce);
  return {{"type", "DataParallel"}, {"num_replicas", replicas}, {"aggregation", aggregation}};
}

inline Run read_small(const Json& document, Registry registry = Registry()) {
  add_points(registry);
  return read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
}

struct Told : Observer {
  void on(const Event& event) override { events.push_back(event); }
  template <typename T>
  std::vector<T> of() const {
    std::vector<T> found;
    for (const Event& event : events) {
      if (const T* its = std::get_if<T>(&event)) found.push_back(*its);
    }
    return found;
  }
  std::vector<Event> events;
};

struct TrainedOptions {
  int processes = 1;
  bool resume = false;
  std::filesystem::path from = {};
  std::int64_t interrupt_at = 0;  // which step is the last then; 0 where it is not
  bool trace = false;
};

struct Trained {
  TrainResult result;
  std::shared_ptr<Told> told = std::make_shared<Told>();
};

// Ranks do what processes would, each with replicas of its own.
inline Trained train_small(const Run& run, const TrainedOptions& options = {}) {
  Trained trained;
  const auto train_one = [&](Communicator* world) {
    Events events;
    if (world == nullptr || world->rank() == Rank{0}) events.add(trained.told);
    std::atomic<std::int64_t> asked = 0;  // of the first of them alone
    const TrainResult result =
        train(run, events,
              {.world = world,
               .resume = options.resume,
               .from = options.from,
               .is_interrupted =
                   [&] {
                     const std::int64_t now = ++asked;
                     return (world == nullptr || world->rank() == Rank{0}) && now == options.interrupt_at;
                   },
               .trace = options.trace});
    if (world == nullptr || world->rank() == Rank{0}) trained.result = result;
  };
  if (options.processes == 1)
    train_one(nullptr);
  else
    run_ranks(options.processes, [&](Communicator& world) {
      try {
        train_one(&world);
      } catch (const ToldElsewhere&) {  // as the command does
      }
    });
  return trained;
}

// All of them, what clients keep included.
inline ParameterSet arrays_in(const std::filesystem::path& checkpoint) {
  return read_safetensors(checkpoint, {.require_checksum = true}).parameters;
}

}  // namespace tutti::testing
