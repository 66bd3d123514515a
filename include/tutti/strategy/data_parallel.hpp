// Local and data-parallel training as values: what every graph, client or member can be trained with.
//
//   strategy::DataParallel strategy{.num_replicas = 2, .aggregation = strategy::AllReduce{.algorithm = Ring{}}};
#pragma once

#include <cstdint>
#include <variant>

#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>

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

// One holds the parameters; replicas send it gradients.
struct ParameterServer {
  friend bool operator==(const ParameterServer&, const ParameterServer&) = default;
};

enum class Topology { ring, complete, exponential, torus, random };

// Replicas average with their neighbours only.
struct Decentralized {
  Topology topology = Topology::ring;
  friend bool operator==(const Decentralized&, const Decentralized&) = default;
};

using GradientAggregation = std::variant<AllReduce, ParameterServer, Decentralized>;

// Replicas of the graph, each with a share of the batch.
struct DataParallel {
  std::int64_t num_replicas = 1;
  GradientAggregation aggregation = AllReduce{};
  friend bool operator==(const DataParallel&, const DataParallel&) = default;
};

// The strategy of each client or member.
using Inner = std::variant<Local, DataParallel>;

}  // namespace tutti::strategy
