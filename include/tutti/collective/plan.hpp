// Who sends which slice to whom in which step: every algorithm is a pure function from a request to a plan, and one
// executor carries plans out. docs/algorithms.md tells each in prose, with its steps and bytes.
//
//   Plan plan;
//   make_plan({.call = CallKind::all_reduce, .algorithm = Ring{}, .rank = Rank{1}, .size = 4, .length = 1000}, plan);
//   count(plan).elements_sent;   // 1500
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>

namespace tutti {

enum class CallKind : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  barrier,
};

std::string_view to_string(CallKind call);

struct PlanRequest {
  CallKind call = CallKind::all_reduce;
  AllReduceStrategy algorithm = Ring{};  // never Auto or SharedSlices, which move no messages
  Rank rank = {};
  int size = 1;
  std::size_t length = 0;  // of the whole array; for all_gather, gather, scatter and all_to_all: of one rank's part
  Rank root = {};
  bool reproducible = false;
};

// The memory that slices lie in. Where a call works in place, source and destination are the same.
enum class Memory : std::uint8_t { source, destination, scratch };

struct Region {
  Memory memory = Memory::destination;
  Slice slice = {};
};

enum class ActionKind : std::uint8_t {
  send,          // region to peer
  receive,       // region from peer
  receive_fold,  // region = region (op) what comes from peer
  settle,        // wait until everything sent so far is out of hand, so that it may be overwritten
  copy,          // region = other
  fold,          // region = region (op) other
  fold_all,      // region = all ranks' contributions to `other`'s slice; they lie in the scratch, one array a rank
  divide,        // region = region / ranks, where the operation is Mean
};

// Which operand of a fold comes from lower ranks: it is taken on a tie of Min or Max.
enum class FoldOrder : std::uint8_t {
  incoming_lower,
  own_lower,
  wrap_enter,  // see WrapPhase
  wrap_within,
  wrap_leave,
};

struct Action {
  int step = 0;
  ActionKind kind = ActionKind::send;
  Rank peer = {};
  Region region = {};
  Region other = {};
  FoldOrder order = FoldOrder::incoming_lower;
};

// What one rank does, in order. Actions of one step follow each other; between steps everything sent is settled.
struct Plan {
  std::vector<Action> actions;
  std::size_t scratch_length = 0;

  void clear();
};

// Fills `plan`, whose memory is used again.
void make_plan(const PlanRequest& request, Plan& plan);

struct PlanCount {
  int steps = 0;  // that send or receive
  int messages_sent = 0;
  std::size_t elements_sent = 0;
  std::size_t elements_received = 0;
};

PlanCount count(const Plan& plan);

}  // namespace tutti
