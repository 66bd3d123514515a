#include "cli/ping_pong.hpp"

#include <chrono>

#include <gtest/gtest.h>

namespace tutti::cli {
namespace {

// The first of a pair, whose partner is played by `answer`: it fills what comes in.
PingPongRank rank_0(std::function<void(const PingPongSide&)> answer) {
  return {.rank = 0,
          .connect = [answer](const PingPongSide& side) { return [answer, side] { answer(side); }; },
          .agree = [](std::uint64_t value) { return value; }};
}

void answer_rightly(const PingPongSide& side) { detail::fill_message(side.incoming, side.peer); }

TEST(PingPong, PairsNeighboursOfWhomTheEvenOneBegins) {
  for (const int rank : {0, 1, 2, 3}) {
    PingPongRank player = rank_0([&](const PingPongSide& side) {
      EXPECT_EQ(side.peer, rank % 2 == 0 ? rank + 1 : rank - 1);
      EXPECT_EQ(side.begins, rank % 2 == 0);
      answer_rightly(side);
    });
    player.rank = rank;
    time_ping_pong(Bytes{10}, {.repetitions = 1}, player);
  }
}

TEST(PingPong, TellsHalfOfARoundTrip) {
  constexpr auto kRoundTrip = std::chrono::milliseconds(2);
  const Timing timing = time_ping_pong(Bytes{64 << 10}, {.repetitions = 20}, rank_0([&](const PingPongSide& side) {
                                         const auto end = std::chrono::steady_clock::now() + kRoundTrip;
                                         answer_rightly(side);
                                         while (std::chrono::steady_clock::now() < end) continue;
                                       }));
  EXPECT_GE(timing.p10, 0.001);
  EXPECT_LT(timing.p10, 0.002);
  EXPECT_EQ(timing.repetitions, 20u);
}

TEST(PingPong, FailsWhereOtherBytesCome) {
  const auto spoil = [](std::size_t which) {
    return rank_0([which](const PingPongSide& side) {
      answer_rightly(side);
      side.incoming[which] ^= std::byte{1};
    });
  };
  for (const std::size_t which : {0, 500, 1000})
    EXPECT_THROW(time_ping_pong(Bytes{1001}, {.repetitions = 1}, spoil(which)), Error) << which;
  EXPECT_THROW(time_ping_pong(Bytes{1001}, {.repetitions = 1}, rank_0([](const PingPongSide&) {})), Error);
  EXPECT_NO_THROW(time_ping_pong(Bytes{0}, {.repetitions = 1}, rank_0([](const PingPongSide&) {})));
}

}  // namespace
}  // namespace tutti::cli
