// Local and data-parallel training as values: what every graph, client or member can be trained with.
//
//   strategy::DataParallel strategy{.num_replicas = 2, .aggregation = strategy::AllReduce{.algorithm = Ring{}}};
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/strategy/outer_rule.hpp>

// Apart from tutti, where DataParallel is what carries this one out.
namespace tutti::strategy {

// One worker.
struct Local {
  friend bool operator==(const Local&, const Local&) = default;
};

// All optional.
struct AllReduce {
  AllReduceStrategy algorithm = Auto{};
  Compression compression = NoCompression{};
  // The batch is dealt out to so many shards, whoever computes them: the same bits on any number of replicas. One per
  // replica, where 0.
  int logical_shards = 0;
  friend bool operator==(const AllReduce&, const AllReduce&) = default;
};

// How far replicas may be apart.
enum class Consistency {
  synchronous,        // each step waits for everybody's gradients
  bounded_staleness,  // nobody is more than max_staleness steps ahead of the slowest
  asynchronous,       // nobody waits
  lock_free,          // nor are there versions: everybody adds to the same parameters at any time ("Hogwild")
};

// "bounded_staleness".
std::string_view consistency_name(Consistency consistency);

// One holds the parameters; replicas send it gradients. All optional.
struct ParameterServer {
  Consistency consistency = Consistency::synchronous;
  std::int64_t max_staleness = 4;  // of bounded_staleness
  // Of gradients that are older than the parameters they change by t versions, where there are versions: their rate is
  // multiplied by (1 + t)^-rate_exponent, and delay_compensation corrects them for the way that the parameters have
  // gone (StalenessOptions in coordinate/).
  double rate_exponent = 0;
  double delay_compensation = 0;
  friend bool operator==(const ParameterServer&, const ParameterServer&) = default;
};

enum class Topology { ring, complete, exponential, torus, random };

// "exponential".
std::string_view topology_name(Topology topology);

// Replicas average with their neighbours only.
struct Decentralized {
  Topology topology = Topology::ring;
  bool gossip = false;  // optional: two at a time, whenever they have time, in place of everybody after each step
  friend bool operator==(const Decentralized&, const Decentralized&) = default;
};

using GradientAggregation = std::variant<AllReduce, ParameterServer, Decentralized>;

// Replicas of the graph, each with a share of the batch.
struct DataParallel {
  std::int64_t num_replicas = 1;
  GradientAggregation aggregation = AllReduce{};
  // Optional. Replicas take so many steps by themselves, and then change the parameters that they had in common by the
  // mean of what became of them, as `outer` says: local SGD, and DiLoCo (Douillard et al., 2023). At 1 gradients are
  // averaged in each step.
  std::int64_t sync_every = 1;
  OuterRule outer = FedAvg{};
  friend bool operator==(const DataParallel&, const DataParallel&) = default;
};

// The strategy of each client or member.
using Inner = std::variant<Local, DataParallel>;

}  // namespace tutti::strategy
