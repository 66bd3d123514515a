// The worlds that a test runs over: every backend, in every way it can be had. Tests link threads_worlds.cpp,
// mesh_worlds.cpp, or process_worlds.cpp and are then started by a launcher.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/collective/communicator.hpp>

#include "support/sample.hpp"

namespace tutti::testing {

struct WorldKind {
  std::string name;
  bool shared_memory;
  std::vector<int> ranks;            // the numbers of ranks to go over: alone, powers of two, and others
  int many = 16;                     // so many it can have as well
  int most_struck = 5;               // of which one fails, at each step of each call in turn
  int every = kEveryWhereSanitized;  // of the points of a cross product, one in so many
  // Throws what a rank threw; a PeerError only where nobody threw anything else.
  std::function<void(int ranks, const std::function<void(Communicator&)>& f, const CommunicatorOptions& options)> run;

  friend std::ostream& operator<<(std::ostream& out, const WorldKind& kind) { return out << kind.name; }
};

inline std::string name_of(const ::testing::TestParamInfo<WorldKind>& parameter) { return parameter.param.name; }

const std::vector<WorldKind>& world_kinds();

inline void run_world(const WorldKind& kind, int ranks, const std::function<void(Communicator&)>& f,
                      const CommunicatorOptions& options = {.deadline = std::chrono::seconds(60)}) {
  kind.run(ranks, f, options);
}

}  // namespace tutti::testing
