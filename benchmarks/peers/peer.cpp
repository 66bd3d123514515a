#include "peers/peer.hpp"

#include <cstdio>
#include <exception>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "cli/arguments.hpp"
#include "cli/bench_result.hpp"
#include "cli/command_line.hpp"
#include "cli/test_values.hpp"

namespace tutti::bench {

std::vector<std::string> PeerRequest::words(int ranks_to_run) const {
  std::vector<std::string> result{"--ranks", std::to_string(ranks_to_run), "--bytes", cli::join_sizes(sizes)};
  if (effort.repetitions != 0) {
    result.insert(result.end(), {"--repetitions", std::to_string(effort.repetitions)});
  } else {
    result.insert(result.end(), {"--seconds", fmt::format("{}", effort.seconds)});
  }
  if (ping_pong) result.emplace_back("--ping-pong");
  return result;
}

int run_peer(const char* name, int argc, char** argv, const std::function<void(const PeerRequest&)>& f) {
  try {
    PeerRequest request;
    std::string ranks = "2,4";
    std::string sizes = "1KiB,64KiB,1MiB,4MiB,64MiB";
    cli::CommandLine line("Times an all-reduce of float32, sum, or messages; prints one JSON object a line.", name);
    line.option("--ranks", ranks, "numbers of ranks, with commas between");
    line.option("--bytes", sizes, "sizes of each rank's array, with commas between");
    line.effort(request.effort);
    line.flag("--ping-pong", request.ping_pong, "messages between ranks 0 and 1, 2 and 3, ..., one way");
    line.option("--rank", request.rank, -1, 1023, "").hide();
    line.option("--meeting-place", request.meeting_place, "").hide();
    if (!line.parse(std::vector<std::string>(argv + 1, argv + argc))) return 0;
    request.ranks = cli::parse_ranks("--ranks", ranks);
    request.sizes = cli::parse_sizes("--bytes", sizes);
    for (const Bytes& size : request.sizes) {
      if (size.value % sizeof(float) != 0)
        throw UsageError(fmt::format("--bytes: {} bytes is no whole number of float32 elements", size.value));
    }
    for (const int count : request.ranks) {
      if (request.ping_pong && count % 2 != 0)
        throw UsageError(fmt::format("--ranks: pairs play ping-pong: expected an even number, found {}", count));
    }
    f(request);
    return 0;
  } catch (const UsageError& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

namespace {

cli::Timing time_all_reduce(Bytes size, const cli::Effort& effort, const PeerRank& peer) {
  constexpr auto kType = DataType::float32;
  constexpr auto kOp = ReduceOp::sum;
  const double scale = cli::first_scale(kType, kOp);
  cli::PageMemory memory(size.value);
  const std::span<float> array = memory.as<float>();
  const auto refill = [&] {
    cli::fill(array, peer.rank, scale);
    peer.agree(0);
  };
  peer.use_array(array);
  refill();
  peer.all_reduce();
  if (const auto wrong = cli::first_wrong(std::span<const float>(array), kOp, peer.ranks, scale))
    throw Error(fmt::format("the sum of {} over {} ranks is wrong: on rank {}, element {} is {} and should be {}",
                            to_string(size), peer.ranks, peer.rank, wrong->index, wrong->found, wrong->expected));

  cli::CallTimer timer({.call = peer.all_reduce,
                        .refill = refill,
                        .agree = peer.agree,
                        .calls_per_filling = cli::calls_per_filling(kType, kOp, peer.ranks)});
  const cli::Plan plan = timer.plan(size.value, effort);
  return cli::summarize(timer.take(plan), plan);
}

}  // namespace

void measure_peer(const PeerRequest& request, const PeerRank& peer) {
  for (const Bytes& size : request.sizes) {
    const cli::Timing timing =
        request.ping_pong ? cli::time_ping_pong(size, request.effort,
                                                {.rank = peer.rank, .connect = peer.connect, .agree = peer.agree})
                          : time_all_reduce(size, request.effort, peer);
    peer.agree(0);
    if (peer.rank != 0) continue;
    const cli::BenchResult result{.engine = peer.engine,
                                  .algorithm = request.ping_pong ? std::string(cli::kPingPong) : peer.algorithm,
                                  .picked = "",
                                  .ranks = peer.ranks,
                                  .bytes = size,
                                  .timing = timing};
    fmt::print("{}\n", to_json_line(result));
    std::fflush(stdout);
  }
}

}  // namespace tutti::bench
