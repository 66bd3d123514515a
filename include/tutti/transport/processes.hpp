// Ranks that are processes, over links that an engine brings (tutti::c10d::join brings Gloo's).
//
//   std::unique_ptr<Transport> world = join_processes({.rank = rank, .wires = std::move(links)},
//   Deadline::after(1min));
//
// Processes of one host share memory, set up here by itself: messages then go through it, and there is a board. The
// memory has no name, so nothing is left behind however a process ends.
//
// A process that dies breaks every world it is in, on all others, at once; one that is stopped or cut off does so when
// nothing was heard of it for `heartbeat`. Both are named.
#pragma once

#include <memory>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/transport/engine_calls.hpp>
#include <tutti/transport/link.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

inline constexpr Duration kDefaultHeartbeat = std::chrono::seconds(30);

struct ProcessesOptions {
  Rank rank = {};
  std::vector<std::unique_ptr<Link>> wires = {};  // by rank; none to itself
  Duration heartbeat = kDefaultHeartbeat;
  bool shared_memory = true;  // where ranks differ, those who say so do
  EngineFactory engine = {};  // the engine's own collectives, where it has some
};

// All processes of the job call it; comes back when they have met.
std::unique_ptr<Transport> join_processes(ProcessesOptions options, Deadline deadline);

}  // namespace tutti
