// Calls that all ranks of a communicator make together, each with its own part.
//
//   all_reduce(world, gradients, {.algorithm = Ring{}, .op = ReduceOp::mean, .deadline = 30s});
//   Pending sum = start_all_reduce(world, gradients);  ...  sum.wait();
//
// Every call first agrees on what it is: the call, length, type, operation, algorithm and root. Where ranks disagree
// each gets the same PeerError saying who brought what; nothing was touched and the next call works. A peer that is
// lost, or later than the deadline, breaks the communicator, and the arrays hold unspecified values.
//
// Arrays that a call writes must not overlap others that it uses, unless it says so, nor those of ranks in the same
// process. Elements lie at addresses that suit their type.
//
// An argument no call could take (arity 0, a root out of range, the mean of integers, a receiving array of the wrong
// length) is a UsageError at once on the rank that brought it, and a disagreement on the others.
#pragma once

#include <cstddef>
#include <optional>

#include <tutti/base/array.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/collective/pending.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>

namespace tutti {

struct AllReduceOptions {
  AllReduceStrategy algorithm = Auto{};
  ReduceOp op = ReduceOp::sum;
  bool reproducible = false;              // the same bits from every algorithm; costs bytes, see docs/algorithms.md
  std::optional<Duration> deadline = {};  // the communicator's, unless set
};

struct ReduceOptions {
  Rank root{0};
  AllReduceStrategy algorithm = Auto{};  // Auto, Centralized, Tree, Ring or SharedSlices
  ReduceOp op = ReduceOp::sum;
  bool reproducible = false;
  std::optional<Duration> deadline = {};
};

// How a rank takes part in a broadcast: all name the root, or exactly one says that it is the source.
enum class BroadcastRole : std::uint8_t { by_root, source, sink };

struct BroadcastOptions {
  Rank root{0};  // with BroadcastRole::by_root
  BroadcastRole role = BroadcastRole::by_root;
  AllReduceStrategy algorithm = Auto{};  // Auto, Centralized, Tree, Ring or SharedSlices
  std::optional<Duration> deadline = {};
};

struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum;
  bool reproducible = false;
  std::optional<Duration> deadline = {};
};

struct RootOptions {
  Rank root{0};
  std::optional<Duration> deadline = {};
};

struct CallOptions {
  std::optional<Duration> deadline = {};
};

// Everybody's `data` becomes the reduction of everybody's `data`.
void all_reduce(Communicator& world, Array data, const AllReduceOptions& options = {});
Pending start_all_reduce(Communicator& world, Array data, const AllReduceOptions& options = {});

// The root's `data` becomes the reduction; the others' stays as it was.
void reduce(Communicator& world, Array data, const ReduceOptions& options = {});
Pending start_reduce(Communicator& world, Array data, const ReduceOptions& options = {});

// Everybody's `data` becomes the root's.
void broadcast(Communicator& world, Array data, const BroadcastOptions& options = {});
Pending start_broadcast(Communicator& world, Array data, const BroadcastOptions& options = {});

// `all` becomes everybody's `mine`, in rank order. `mine` may be this rank's place in `all`.
void all_gather(Communicator& world, ConstArray mine, Array all, const CallOptions& options = {});
Pending start_all_gather(Communicator& world, ConstArray mine, Array all, const CallOptions& options = {});

// `mine` becomes this rank's chunk (base/chunk.hpp) of the reduction of everybody's `data`.
void reduce_scatter(Communicator& world, ConstArray data, Array mine, const ReduceScatterOptions& options = {});
Pending start_reduce_scatter(Communicator& world, ConstArray data, Array mine,
                             const ReduceScatterOptions& options = {});

// The root's `all` becomes everybody's `mine`, in rank order; elsewhere `all` is empty.
void gather(Communicator& world, ConstArray mine, Array all, const RootOptions& options = {});
Pending start_gather(Communicator& world, ConstArray mine, Array all, const RootOptions& options = {});

// `mine` becomes this rank's part of the root's `all`; elsewhere `all` is empty.
void scatter(Communicator& world, ConstArray all, Array mine, const RootOptions& options = {});
Pending start_scatter(Communicator& world, ConstArray all, Array mine, const RootOptions& options = {});

// Part j of rank i's `parts` becomes part i of rank j's `received`. The two arrays must not overlap.
void all_to_all(Communicator& world, ConstArray parts, Array received, const CallOptions& options = {});
Pending start_all_to_all(Communicator& world, ConstArray parts, Array received, const CallOptions& options = {});

// Returns when all ranks have called it.
void barrier(Communicator& world, const CallOptions& options = {});
Pending start_barrier(Communicator& world, const CallOptions& options = {});

}  // namespace tutti
