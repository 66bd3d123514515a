// How to time a message between two ranks: one method for tutti and for the engines it is compared with.
//
//   Timing timing = time_ping_pong(size, effort, {.rank = 0, .connect = ..., .agree = ...});     // on every rank
//
// Ranks 0 and 1 are a pair, and 2 and 3, and so on; all play at once. The first of a pair sends, the second sends back.
// What is told is half the time of such a round trip, by rank 0's clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/bytes.hpp>
#include <tutti/base/error.hpp>

#include "cli/measure.hpp"
#include "cli/test_values.hpp"

namespace tutti::cli {

// What results of it have as their algorithm.
inline constexpr std::string_view kPingPong = "ping-pong";

// One rank's side of a pair.
struct PingPongSide {
  int peer = 0;
  bool begins = false;
  std::span<std::byte> outgoing;
  std::span<std::byte> incoming;
};

struct PingPongRank {
  int rank = 0;
  // Gives what makes one round trip: whoever begins sends `outgoing` and then receives into `incoming`, the other
  // receives and then sends.
  std::function<std::function<void()>(const PingPongSide&)> connect;
  // Gives every rank what rank 0 passed.
  std::function<std::uint64_t(std::uint64_t)> agree;
};

namespace detail {

// Neighbours differ, and ranks do.
constexpr std::byte message_byte(int rank, std::size_t index) {
  return static_cast<std::byte>(((static_cast<std::uint32_t>(index) * 2654435761u) >> 16) +
                                static_cast<std::uint32_t>(rank) * 101);
}

inline void fill_message(std::span<std::byte> message, int rank) {
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = message_byte(rank, i);
}

inline std::optional<std::size_t> first_wrong_byte(std::span<const std::byte> message, int rank) {
  for (std::size_t i = 0; i < message.size(); ++i)
    if (message[i] != message_byte(rank, i)) return i;
  return std::nullopt;
}

}  // namespace detail

// Seconds of a message one way. An Error where the first round trip brings other bytes than were sent.
inline Timing time_ping_pong(Bytes size, const Effort& effort, const PingPongRank& rank) {
  PageMemory outgoing(size.value);
  PageMemory incoming(size.value);
  const PingPongSide side{
      .peer = rank.rank ^ 1, .begins = rank.rank % 2 == 0, .outgoing = outgoing.bytes(), .incoming = incoming.bytes()};
  detail::fill_message(side.outgoing, rank.rank);
  detail::fill_message(side.incoming, rank.rank);  // what must not stay
  const std::function<void()> round_trip = rank.connect(side);
  round_trip();
  if (const auto wrong = detail::first_wrong_byte(side.incoming, side.peer))
    throw Error(fmt::format("a message of {} from rank {} to rank {} went wrong: byte {} is another", to_string(size),
                            side.peer, rank.rank, *wrong));

  CallTimer timer({.call = round_trip,
                   .refill = [] {},
                   .agree = rank.agree,
                   .calls_per_filling = std::numeric_limits<std::uint64_t>::max()});
  const Plan plan = timer.plan(size.value, effort);
  std::vector<double> seconds = timer.take(plan);
  for (double& one_way : seconds) one_way /= 2;
  return summarize(seconds, plan);
}

}  // namespace tutti::cli
