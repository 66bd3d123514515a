// Ranks that are threads of one process.
//
//   std::vector<std::unique_ptr<Transport>> world = make_threads_world(4);
//   std::thread first([&] { send(*world[0], Rank{1}, Tag{7}, payload, Deadline::after(30s)); });
//
// Of a message longer than kEagerBytes the receiver reads the sender's memory.
#pragma once

#include <memory>
#include <vector>

#include <tutti/transport/transport.hpp>

namespace tutti {

struct ThreadsOptions {
  // false: ranks keep to messages, as if they were processes of one host: no shared board, no view of a payload.
  bool shared_memory = true;
  // false: for ranks that wait long for each other and seldom; who waits sleeps soon, and leaves the cores to the
  // others.
  bool waits_awake = true;
};

// One transport per rank. Zero ranks or fewer is a UsageError.
std::vector<std::unique_ptr<Transport>> make_threads_world(int ranks, const ThreadsOptions& options = {});

}  // namespace tutti
