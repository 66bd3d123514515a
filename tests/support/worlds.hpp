// The worlds that a test runs over: every backend, in every way it can be had.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/collective/run_ranks.hpp>

namespace tutti::testing {

struct WorldKind {
  std::string name;
  bool shared_memory;

  friend std::ostream& operator<<(std::ostream& out, const WorldKind& kind) { return out << kind.name; }
};

inline std::string name_of(const ::testing::TestParamInfo<WorldKind>& parameter) { return parameter.param.name; }

inline const std::vector<WorldKind>& world_kinds() {
  static const std::vector<WorldKind> kinds{{"SharedMemory", true}, {"MessagesOnly", false}};
  return kinds;
}

inline void run_world(const WorldKind& kind, int ranks, const std::function<void(Communicator&)>& f,
                      CommunicatorOptions options = {.deadline = std::chrono::seconds(60)}) {
  run_ranks(ranks, f, {.shared_memory = kind.shared_memory, .communicator = std::move(options)});
}

// The numbers of ranks that tests go over: alone, powers of two, and others.
inline const std::vector<int> kRanks{1, 2, 3, 5, 8};

}  // namespace tutti::testing
