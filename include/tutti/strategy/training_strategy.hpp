// How a graph is trained: a value that belongs to it. docs/strategies.md tells every field with its range and default.
//
//   TrainingStrategy strategy = strategy::DataParallel{.num_replicas = 2, .aggregation = strategy::AllReduce{}};
//   to_string(strategy);    // "DataParallel: 2 replicas, AllReduce"
//   to_json(strategy);      // {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}
//
// In JSON an alternative is told by the key "type", of a protocol by "protocol", of all others by "method". Fields that
// are marked as optional here may be left out there, and are when they hold their defaults; all others must be given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/strategy/data_parallel.hpp>
#include <tutti/strategy/federated.hpp>
#include <tutti/strategy/population.hpp>

namespace tutti {

namespace strategy {

// --- ModelParallel: parts of the graph in different places ---

struct WorkerId {
  std::string id;
  friend bool operator==(const WorkerId&, const WorkerId&) = default;
};

struct Tag {
  std::string tag;
  friend bool operator==(const Tag&, const Tag&) = default;
};

// {"WorkerId": "w0"}, {"Tag": "gpu"}.
using RemoteTarget = std::variant<WorkerId, Tag>;

struct Partition {
  std::vector<std::string> node_ids;
  RemoteTarget target;
  friend bool operator==(const Partition&, const Partition&) = default;
};

// Through a shared directory.
struct DataStore {
  std::string path = {};  // optional: a folder that there need not be yet; "store" in the output folder where empty
  friend bool operator==(const DataStore&, const DataStore&) = default;
};

// From worker to worker.
struct Direct {
  friend bool operator==(const Direct&, const Direct&) = default;
};

enum class Schedule { gpipe, one_f_one_b, interleaved };  // the second is "1f1b" in JSON

// The same, with several micro-batches on their way at once.
struct Pipeline {
  std::int64_t micro_batch_size = 1;          // rows
  Schedule schedule = Schedule::one_f_one_b;  // optional
  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

// "1f1b".
std::string_view schedule_name(Schedule schedule);

using CommunicationProtocol = std::variant<DataStore, Direct, Pipeline>;

// For partitions that are found by measuring what each node costs.
struct AutoPartition {
  std::int64_t workers = 0;  // none are looked for, where 0
  friend bool operator==(const AutoPartition&, const AutoPartition&) = default;
};

struct ModelParallel {
  std::vector<Partition> partitions;  // a node is in one of them
  CommunicationProtocol communication = Direct{};
  bool recompute = false;  // optional: what a stage computes forward it computes anew for backward, and keeps less
  AutoPartition auto_partition = {};  // in place of partitions
  friend bool operator==(const ModelParallel&, const ModelParallel&) = default;
};

// --- Custom: a coordinator that is known by its name ---

struct Custom {
  std::string coordinator;
  std::string config = "{}";  // the text of a JSON value, which is the coordinator's to read; {} where JSON has none
  friend bool operator==(const Custom&, const Custom&) = default;
};

}  // namespace strategy

using TrainingStrategy = std::variant<strategy::Local, strategy::DataParallel, strategy::ModelParallel,
                                      strategy::Federated, strategy::PopulationBased, strategy::Custom>;

// "DataParallel".
std::string_view name_of(const TrainingStrategy& strategy);
// One line for people.
std::string to_string(const TrainingStrategy& strategy);
// Is it anything but Local?
bool is_distributed(const TrainingStrategy& strategy);

// Throws a UsageError for what training_strategy_from_json would refuse:
//   "DataParallel: num_replicas: expected a whole number from 1 to 65536, found 0".
void validate(const TrainingStrategy& strategy);

// Does not validate; throws a UsageError for a config that is no JSON. Reading what was written gives an equal
// strategy, with the config laid out without blanks.
nlohmann::ordered_json to_json(const TrainingStrategy& strategy);
TrainingStrategy training_strategy_from_json(const JsonValue& value);

// A subgraph may have a strategy of its own, where it is Local inside DataParallel (its parameters are private to each
// replica), Local inside Federated (they stay on the client), DataParallel inside ModelParallel (that stage is
// replicated), or equal to its parent graph's. Otherwise this is the reason, a clause that names both.
std::optional<std::string> why_not_inside(const TrainingStrategy& outer, const TrainingStrategy& inner);

}  // namespace tutti
