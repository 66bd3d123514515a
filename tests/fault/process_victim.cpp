// One of several processes that make random collectives until one of them, the victim, is killed or stopped by itself
// at a random moment. All others must hear that it is lost, name it, and go on without it.
//
//   process_victim kill|stop|cut <victim> <seed>
//
// With `cut` somebody else cuts the victim off.
//
// Prints what each survivor heard; ends with 1 where that is right (so that the launcher ends who is stopped), and 3
// where not.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <tutti/base/random.hpp>
#include <tutti/c10d/join.hpp>
#include <tutti/collective.hpp>

namespace {

using namespace tutti;
using namespace std::chrono_literals;

// Random calls, the same on all ranks.
void work(Communicator& world, std::uint64_t seed) {
  RandomStream draws({seed});
  std::vector<AllReduceStrategy> algorithms = own_all_reduce_strategies();
  if (!world.shape().shared_memory) std::erase(algorithms, AllReduceStrategy(SharedSlices{}));
  algorithms.emplace_back(Gloo{});
  for (;;) {
    const std::size_t length = draws.below(draws.below(4) == 0 ? 500'000 : 1000);
    const Rank root{static_cast<int>(draws.below(static_cast<std::uint64_t>(world.size())))};
    std::vector<float> data(length, 1.0f);
    std::vector<float> all(length * static_cast<std::size_t>(world.size()), 1.0f);
    switch (draws.below(12)) {
      case 0: broadcast(world, data, {.root = root}); break;
      case 1: {
        Pending pending = start_all_reduce(world, data);
        std::this_thread::sleep_for(std::chrono::microseconds(draws.below(200)));
        pending.wait();
        break;
      }
      case 2: reduce(world, data, {.root = root}); break;
      case 3: all_gather(world, data, all); break;
      case 4: reduce_scatter(world, all, data); break;
      case 5: gather(world, data, all, {.root = root}); break;
      case 6: scatter(world, all, data, {.root = root}); break;
      case 7: {
        std::vector<float> received(all.size());
        all_to_all(world, all, received);
        break;
      }
      case 8: barrier(world); break;
      default: all_reduce(world, data, {.algorithm = algorithms[draws.below(algorithms.size())]}); break;
    }
  }
}

int survive(Communicator& world, Rank victim, const PeerError& error) {
  fmt::print("heard: {}\n", error.what());
  if (world.rank() == victim) return error.kind() == FailureKind::lost ? 1 : 3;  // it was cut off from the others
  if (error.kind() != FailureKind::lost || error.ranks() != std::vector{victim}) {
    fmt::print("WRONG: {} was to be named as lost\n", to_string(victim));
    return 3;
  }
  std::vector<Rank> survivors;
  for (Rank rank : all_ranks(world.size())) {
    if (rank != victim) survivors.push_back(rank);
  }
  Communicator rest = world.rebuild(survivors);
  for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{})}) {
    std::vector<float> data(20'000, 1.0f);
    all_reduce(rest, data, {.algorithm = algorithm});
    if (data.back() != static_cast<float>(rest.size())) {
      fmt::print("WRONG: the survivors' sum is {}\n", data.back());
      return 3;
    }
  }
  fmt::print("went on with {}\n", rest.size());
  barrier(rest);  // nobody leaves, and sets the launcher off, before all have gone on
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string how = argv[1];
  const Rank victim{std::atoi(argv[2])};
  const auto seed = static_cast<std::uint64_t>(std::atoll(argv[3]));
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    Communicator world(c10d::join({.deadline = 60s}), {.deadline = 60s});
    barrier(world);
    fmt::print("working\n");
    if (world.rank() == victim && how != "cut") {
      std::thread([=] {
        RandomStream draws({seed, 1});
        std::this_thread::sleep_for(std::chrono::microseconds(draws.below(50'000)));
        ::kill(::getpid(), how == "kill" ? SIGKILL : SIGSTOP);
      }).detach();
    }
    try {
      work(world, seed);
    } catch (const PeerError& error) {
      return survive(world, victim, error);
    }
  } catch (const std::exception& error) {
    fmt::print("WRONG: {}\n", error.what());
    return 3;
  }
  return 3;
}
