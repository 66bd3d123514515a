// What a rank brings to a call, as far as all ranks must bring the same; and what follows where they do not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <tutti/base/data_type.hpp>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/plan.hpp>

namespace tutti {

// An argument that no call could take, by its kind: the rank that brought it knows the rest, its peers need the name.
enum class Misuse : std::uint8_t {
  none,
  arity,
  root,
  mean_of_integers,
  length_of_result,
  type_of_result,
  algorithm_for_call,
  memory_not_shared,
  engine_not_there,
  engine_lacks_it,
};

// Travels as bytes between ranks of one build.
struct Descriptor {
  std::uint64_t sequence = 0;
  std::uint64_t length = 0;
  std::int32_t arity = 0;
  std::int32_t root = 0;
  CallKind call = CallKind::barrier;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint8_t algorithm = 0;  // index in AllReduceStrategy
  BroadcastRole role = BroadcastRole::by_root;
  std::uint8_t reproducible = 0;
  Misuse misuse = Misuse::none;
  std::uint8_t unused = 0;

  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

void set_algorithm(Descriptor& descriptor, const AllReduceStrategy& algorithm);
AllReduceStrategy algorithm_of(const Descriptor& descriptor);

// Descriptors by rank: the same answer on every rank, in the same words. Names what differs, and who brought what;
// `ranks` are those outside the majority, or all where there is none.
std::optional<Failure> find_disagreement(std::span<const Descriptor> by_rank);

// The source of a broadcast that all agree on.
Rank root_of(std::span<const Descriptor> by_rank);

}  // namespace tutti
