// A run file: what to train, on what, and how. docs/run_file.md has every key.
//
//   Registry registry;                                      // what tutti has; add your own before reading
//   Run run = read_run(JsonDocument::read_file("run.json").root(), registry);
//
// Reading checks everything that can be checked without training (operators that do not know their shapes run once, on
// zeros), and reads of data what tells its shape: every failure is a UsageError that names its place in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/json.hpp>
#include <tutti/coordinate/client_selection.hpp>
#include <tutti/data/client_split.hpp>
#include <tutti/data/data_options.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/graph/cut.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/kernels/optimizer.hpp>
#include <tutti/strategy/search_space.hpp>
#include <tutti/train/client_group.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/loss.hpp>
#include <tutti/train/phase.hpp>
#include <tutti/train/schedule.hpp>

namespace tutti {

// Everything that a run file names, and that users can add to.
struct Registry {
  OperatorRegistry operators;
  LossRegistry losses;
  MetricRegistry metrics;
  DataSourceRegistry data_sources;
  CoordinatorRegistry coordinators;
};

struct RunData {
  std::string source;    // its name
  DataSource opened_by;  // open_data(opened_by, options, seed)
  DataOptions options;
  std::int64_t batch_size = 0;           // rows of all replicas together
  std::vector<std::size_t> input_order;  // for each input of the graph, which of the source's it is
  // Of Federated: whose rows are whose, and the share of its rows that a client evaluates with.
  ClientSplit client_split = Iid{};
  double client_test = 0;
};

struct RunMetric {
  std::string name;
  Metric metric;
};

// Ends a run that gets no better.
struct EarlyStopping {
  std::int64_t patience = 1;  // so many evaluations in a row
  double min_change = 0;      // that are not better by more than this
  friend bool operator==(const EarlyStopping&, const EarlyStopping&) = default;
};

// How long, how the gradients of a step become an update, and how often somebody looks.
struct RunTrain {
  // At least one of the two, and the run ends with whichever comes first; none where a strategy has rounds or
  // generations, or the run has phases.
  std::optional<std::int64_t> epochs;
  std::optional<std::int64_t> steps;
  double clip_norm = 0;             // none, where 0
  std::int64_t accumulate = 1;      // steps to an update
  std::int64_t evaluate_every = 0;  // steps; at the end of each epoch, where 0
  std::int64_t log_every = 10;      // steps to a line of metrics.jsonl
  std::string best_by = "loss";     // or a metric: what tells the best evaluation
  std::optional<EarlyStopping> early_stopping = {};
  Duration deadline = kDefaultDeadline;  // for a step, and whoever waits for others in it
};

// Which are written, and which of them stay.
struct RunCheckpoints {
  std::int64_t every = 0;  // steps; with each evaluation, where 0
  std::int64_t keep_last = 2;
  bool keep_best = true;
};

struct Run {
  std::uint64_t seed = 0;
  RunData data;
  Graph graph;
  std::vector<Worker> workers;       // of ModelParallel: those that the file lists, or that partitions name
  std::vector<ClientGroup> clients;  // of Federated
  SearchSpace search;                // of PopulationBased
  Coordinator coordinator;           // of Custom
  std::vector<RunPhase> phases;      // one after the other, where there are some
  std::string loss_name;
  Loss loss;
  std::vector<RunMetric> metrics;
  OptimizerRule optimizer;
  Schedule schedule;
  RunTrain train;
  RunCheckpoints checkpoints;
  std::string output;                 // a folder
  std::vector<std::string> warnings;  // the graph's, and what else was probably not meant
  // The run file with everything that it left out, and absolute paths of its files: read again, it is the same run.
  std::shared_ptr<const nlohmann::ordered_json> resolved;
  // The same as it was written, with absolute paths; and what it was read with: to read it again with other values.
  std::shared_ptr<const nlohmann::ordered_json> written;
  std::shared_ptr<const Registry> registry;
};

Run read_run(const JsonValue& value, const Registry& registry = Registry());
Run read_run(const JsonValue& value, std::shared_ptr<const Registry> registry);

// Of what tells the best evaluation, train.best_by.
bool is_higher_better(const Run& run);

// Of a federated run: how many there are, and how many have the tags that it asks for.
ClientCounts client_counts(const Run& run);

// {"name": "adam", "lr": 0.001, "beta1": 0.9, ...}
OptimizerRule optimizer_from_json(const JsonValue& value);
nlohmann::ordered_json to_json(const OptimizerRule& rule);

}  // namespace tutti
