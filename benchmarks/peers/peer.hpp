// What the peers have in common: their command line, how they are measured, and what they print.
//
//   int main(int argc, char** argv) {
//     return run_peer("gloo_peer", argc, argv, [](const PeerRequest& request) { ... });
//   }
//
// and on every rank, with one process or thread per rank:
//
//   measure_peer(request, {.engine = "gloo", .rank = ..., .all_reduce = ...});
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/bytes.hpp>

#include "cli/measure.hpp"
#include "cli/ping_pong.hpp"

namespace tutti::bench {

struct PeerRequest {
  std::vector<int> ranks;
  std::vector<Bytes> sizes;
  cli::Effort effort;
  bool ping_pong = false;  // messages between pairs of ranks, not all-reduces

  // What a launcher tells the processes it starts: which rank they are and where they meet.
  int rank = -1;
  std::string meeting_place;

  // The words that ask for the same on one number of ranks.
  std::vector<std::string> words(int ranks_to_run) const;
};

// Exit code 2 and a sentence for misuse, 1 and a sentence where `f` throws.
int run_peer(const char* name, int argc, char** argv, const std::function<void(const PeerRequest&)>& f);

// One rank of an engine.
struct PeerRank {
  std::string engine;
  std::string algorithm;
  int rank = 0;
  int ranks = 1;
  // Comes before the first all-reduce of an array.
  std::function<void(std::span<float>)> use_array;
  // Sums that array over the ranks, in place.
  std::function<void()> all_reduce;
  // As in cli/ping_pong.hpp; none where the engine has no messages.
  std::function<std::function<void()>(const cli::PingPongSide&)> connect;
  // Gives every rank what rank 0 passed, and no rank returns before all have come.
  std::function<std::uint64_t(std::uint64_t)> agree;
};

// All ranks call it; rank 0 prints a line for each size. Throws where the first sum or message is wrong.
void measure_peer(const PeerRequest& request, const PeerRank& peer);

}  // namespace tutti::bench
