// One of several processes that share nothing but a folder and make all-reduces there, again and again, until a file is
// there when rank 0 looks for it. Where one of them is lost, the others go on without it once, and end.
//
//   RANK=0 WORLD_SIZE=3 folder_worker <folder> <heartbeat in seconds> <file>
//
// Prints what it does, a line each, and ends with 0; with 1 where another rank failed, 2 where it was misused, and 3
// where a result is wrong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tutti/collective.hpp>
#include <tutti/transport/folder.hpp>

#include "support/oracle.hpp"

namespace {

using namespace tutti;
using namespace tutti::testing;
using namespace std::chrono_literals;

bool reduces_rightly(Communicator& world, std::size_t length, unsigned seed) {
  std::vector<float> data = values_of<float>(world.rank().value, length, seed);
  all_reduce(world, data);
  if (data == reduced<float>(world.size(), length, ReduceOp::sum, seed)) return true;
  fmt::print("WRONG: an all-reduce of {}\n", length);
  return false;
}

int work(Communicator& world, const std::string& end) {
  barrier(world);
  fmt::print("working\n");
  for (unsigned seed = 1;; ++seed) {
    // Short ones go as they are, long ones in pieces.
    for (std::size_t length : {std::size_t{7}, std::size_t{300'000}}) {
      if (!reduces_rightly(world, length, seed)) return 3;
    }
    std::vector<std::int32_t> ends{std::filesystem::exists(end) ? 1 : 0};
    broadcast(world, ends);
    if (ends[0] != 0) break;
  }
  fmt::print("all was right\n");
  return 0;
}

int go_on(Communicator& world, const PeerError& error) {
  fmt::print("heard: {}\n", error.what());
  std::vector<Rank> survivors;
  for (Rank rank : all_ranks(world.size())) {
    if (std::ranges::find(error.ranks(), rank) == error.ranks().end()) survivors.push_back(rank);
  }
  if (std::ranges::find(survivors, world.rank()) == survivors.end()) return 1;  // the others gave this one up
  Communicator rest = world.rebuild(survivors);
  if (!reduces_rightly(rest, 20'000, 1)) return 3;
  fmt::print("went on with {}\n", rest.size());
  return 1;
}

int number(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? -1 : std::atoi(value);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    Communicator world(join_folder({.folder = argv[1],
                                    .rank = Rank{number("RANK")},
                                    .size = number("WORLD_SIZE"),
                                    .heartbeat = std::chrono::seconds(std::atoi(argv[2])),
                                    .deadline = 30s}),
                       {.deadline = 60s});
    try {
      return work(world, argv[3]);
    } catch (const PeerError& error) {
      return go_on(world, error);
    }
  } catch (const PeerError& error) {
    fmt::print("heard: {}\n", error.what());
    return 1;
  } catch (const UsageError& error) {
    fmt::print("misused: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print("WRONG: {}\n", error.what());
    return 3;
  }
}
