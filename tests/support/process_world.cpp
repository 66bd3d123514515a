#include "support/process_world.hpp"

#include <iostream>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/c10d/join.hpp>

namespace tutti::testing {
namespace {

std::unique_ptr<Transport> world;

}  // namespace

int processes() { return world->size(); }
bool processes_share_memory() { return world->shared_board() != nullptr; }

void run_processes(int ranks, const std::function<void(std::unique_ptr<Transport>)>& script) {
  ASSERT_LE(ranks, processes()) << "start this with more processes";
  const Deadline deadline = Deadline::after(std::chrono::seconds(120));
  if (world->rank().value < ranks) {
    const RankRange first = all_ranks(ranks);
    const std::vector<Rank> members(first.begin(), first.end());
    std::unique_ptr<Transport> group = world->regroup(members, deadline);
    const Rank rank = group->rank();
    try {
      script(std::move(group));
    } catch (const std::exception& error) {
      ADD_FAILURE() << to_string(rank) << " threw: " << error.what();
    }
  }
  for (Rank peer : all_ranks(world->size())) send(*world, peer, Tag{0}, {}, deadline);
  for (Rank peer : all_ranks(world->size())) world->receive(peer, Tag{0}, deadline);
}

}  // namespace tutti::testing

int main(int argc, char** argv) {
  try {
    tutti::testing::world = tutti::c10d::join();
    testing::InitGoogleTest(&argc, argv);
    const int result = RUN_ALL_TESTS();
    tutti::testing::world.reset();
    return result;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
