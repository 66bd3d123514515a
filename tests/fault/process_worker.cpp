// One of several processes that make every collective, again and again, and look at each result, until a file is there
// when rank 0 looks for it. Or the store where they meet.
//
//   process_worker work <seconds to join> <file>
//   process_worker serve
//
// Prints what it does, a line each, and ends with 0; with 1 where another rank failed, 2 where it was misused, and 3
// where a result is wrong.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <tutti/c10d/join.hpp>
#include <tutti/collective.hpp>
#include <tutti/transport/store_server.hpp>

#include "support/oracle.hpp"

namespace {

using namespace tutti;
using namespace tutti::testing;
using namespace std::chrono_literals;

class Rounds {
 public:
  explicit Rounds(Communicator& world) : world_(world), ranks_(world.size()), me_(world.rank().value) {
    if (!world.shape().shared_memory) std::erase(algorithms_, AllReduceStrategy(SharedSlices{}));
    algorithms_.emplace_back(Gloo{});
  }

  // Short ones go as they are, long ones in pieces.
  bool one(unsigned seed) {
    for (std::size_t length : {std::size_t{7}, std::size_t{300'000}}) {
      for (const AllReduceStrategy& algorithm : algorithms_) {
        std::vector<float> data = mine(length, seed);
        all_reduce(world_, data, {.algorithm = algorithm});
        if (data != reduced<float>(ranks_, length, ReduceOp::sum, seed)) return wrong(to_string(algorithm));
      }
      const Rank root{static_cast<int>(seed) % ranks_};
      std::vector<float> data = mine(length, seed);
      broadcast(world_, data, {.root = root});
      if (data != values_of<float>(root.value, length, seed)) return wrong("broadcast");
      std::vector<float> all(length * static_cast<std::size_t>(ranks_));
      const std::vector<float> own = mine(length, seed);
      all_gather(world_, own, all);
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto part = std::span(all).subspan(length * static_cast<std::size_t>(rank), length);
        if (!std::ranges::equal(part, values_of<float>(rank, length, seed))) return wrong("all_gather");
      }
      std::vector<float> chunk(length);
      const std::vector<float> whole = mine(all.size(), seed);
      reduce_scatter(world_, whole, chunk);
      const std::size_t first = length * static_cast<std::size_t>(me_);
      if (chunk != reduced<float>(ranks_, length, ReduceOp::sum, seed, first)) return wrong("reduce_scatter");
    }
    barrier(world_);
    return true;
  }

 private:
  std::vector<float> mine(std::size_t length, unsigned seed) const { return values_of<float>(me_, length, seed); }
  static bool wrong(const std::string& call) {
    fmt::print("WRONG: {}\n", call);
    return false;
  }

  Communicator& world_;
  const int ranks_;
  const int me_;
  std::vector<AllReduceStrategy> algorithms_ = own_all_reduce_strategies();
};

int work(Duration deadline, const std::string& end) {
  Communicator world(c10d::join({.deadline = deadline}), {.deadline = 60s});
  barrier(world);
  fmt::print("working\n");
  Rounds rounds(world);
  for (unsigned seed = 1;; ++seed) {
    if (!rounds.one(seed)) return 3;
    std::vector<std::int32_t> ends{std::filesystem::exists(end) ? 1 : 0};
    broadcast(world, ends);
    if (ends[0] != 0) break;
  }
  fmt::print("all was right\n");
  return 0;
}

int serve() {
  const StoreServer server;
  fmt::print("{}\n", server.port());
  for (;;) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words == std::vector<std::string>{"serve"}) return serve();
    if (words.size() != 3 || words[0] != "work") return 2;
    return work(std::chrono::seconds(std::atoi(argv[2])), words[2]);
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
