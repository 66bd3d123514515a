#include <tutti/collective/run_ranks.hpp>

#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

WorldKind kind_of(const std::string& name, bool shared_memory) {
  return {.name = name,
          .shared_memory = shared_memory,
          .ranks = {1, 2, 3, 5, 8},
          .many = 400,
          .run = [=](int ranks, const std::function<void(Communicator&)>& f, const CommunicatorOptions& options) {
            run_ranks(ranks, f, {.shared_memory = shared_memory, .communicator = options});
          }};
}

}  // namespace

const std::vector<WorldKind>& world_kinds() {
  static const std::vector<WorldKind> kinds{kind_of("SharedMemory", true), kind_of("MessagesOnly", false)};
  return kinds;
}

}  // namespace tutti::testing
