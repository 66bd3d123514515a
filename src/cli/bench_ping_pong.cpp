// `tutti bench ping-pong`: how long a message takes from one rank to another, by number of ranks and size. Ranks are
// threads of this process, or the processes that a launcher started.
#include <functional>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <tutti/collective.hpp>

#include "cli/bench_report.hpp"
#include "cli/bench_request.hpp"
#include "cli/bench_result.hpp"
#include "cli/command_line.hpp"
#include "cli/ping_pong.hpp"
#include "cli/ranks.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

// Nothing where help was asked for, and printed.
std::optional<BenchRequest> parse_request(Arguments arguments) {
  CommandLine line(
      "Times a message between two ranks, one way: half a round trip. Ranks 0 and 1, 2 and 3, ... play at once. Ranks "
      "are threads of this process, or processes that a launcher started.",
      "tutti bench ping-pong");
  const BenchOptions options(line);
  if (!line.parse(arguments)) return std::nullopt;
  const BenchRequest request = options.read();
  for (const int ranks : request.ranks) {
    if (ranks % 2 != 0)
      throw UsageError(fmt::format("--ranks: pairs play ping-pong: expected an even number of ranks, found {}", ranks));
  }
  return request;
}

// What comes in, and what goes out.
std::uint64_t arrays_of_rank(int) { return 2; }

std::function<void()> connect(Transport& transport, const PingPongSide& side) {
  return [&transport, side] {
    constexpr Tag kTag{1};
    const Rank peer{side.peer};
    const Deadline deadline = Deadline::after(kDefaultDeadline);
    const auto receive = [&] { transport.receive(peer, kTag, deadline).copy_to(side.incoming); };
    transport.expect(peer, kTag);
    if (side.begins) {
      const SendTicket ticket = transport.start_send(peer, kTag, side.outgoing);
      receive();
      transport.finish_send(ticket, deadline);
    } else {
      receive();
      send(transport, peer, kTag, side.outgoing, deadline);
    }
  };
}

void measure(const BenchRequest& request, Communicator& world, BenchReport& report) {
  refuse_what_memory_cannot_hold(request, arrays_of_rank, world);
  const bool tells = world.rank() == Rank{0};
  if (tells)
    report.begin(
        {.headline = fmt::format("ping-pong: a message one way, between ranks 0 and 1, 2 and 3, ...; ranks are {}",
                                 describe_ranks(world))});
  for (const Bytes& size : request.sizes) {
    const Timing timing =
        time_ping_pong(size, request.effort,
                       {.rank = world.rank().value,
                        .connect = [&](const PingPongSide& side) { return connect(world.transport(), side); },
                        .agree = [&](std::uint64_t of_rank_0) { return agree(world, of_rank_0); }});
    // None begins with the next size, and takes memory for it, before all have done with this one.
    barrier(world);
    if (tells)
      report.add({.engine = std::string(engine_of(world)),
                  .algorithm = std::string(kPingPong),
                  .picked = "",
                  .ranks = world.size(),
                  .bytes = size,
                  .timing = timing});
  }
}

void run(Arguments arguments) {
  const std::optional<BenchRequest> request = parse_request(arguments);
  if (!request) return;
  refuse_what_memory_cannot_hold(*request, arrays_of_rank);
  BenchReport report(request->json);
  request->run([&](Communicator& world) { measure(*request, world, report); });
}

}  // namespace

void run_bench_ping_pong(Arguments arguments) {
  tell_misuse_once([&] { run(arguments); });
}

}  // namespace tutti::cli
