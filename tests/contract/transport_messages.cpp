// Messages: whole, in order, expected, from several threads, taken back.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "contract_steps.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;

TEST_P(TransportContract, CarriesMessagesOfAnySizeBetweenAllPairs) {
  const std::vector<std::size_t> sizes{0, 1, 63, kEagerBytes - 1, kEagerBytes, kEagerBytes + 1, 1 << 20};
  for (int ranks : kSizes) {
    run(ranks, [&](Transport& transport) {
      const int me = transport.rank().value;
      for (std::size_t bytes : sizes) {
        const std::vector<std::byte> mine = pattern(bytes, me);
        std::vector<SendTicket> tickets;
        for (Rank peer : all_ranks(ranks)) tickets.push_back(transport.start_send(peer, Tag{bytes}, mine));
        for (Rank peer : all_ranks(ranks)) {
          EXPECT_TRUE(same(receive_all(transport, peer, Tag{bytes}), pattern(bytes, peer.value))) << bytes << " bytes";
        }
        for (SendTicket ticket : tickets) transport.finish_send(ticket, soon());
      }
    });
  }
}

TEST_P(TransportContract, KeepsTheOrderWithinATagAndFindsMessagesByTag) {
  constexpr int kMessages = 1000;
  run(3, [&](Transport& transport) {
    std::vector<int> numbers(kMessages);
    std::iota(numbers.begin(), numbers.end(), 0);
    const Rank to = next_of(transport);
    for (int& number : numbers) {
      const Tag tag{static_cast<std::uint64_t>(number % 4)};
      send(transport, to, tag, std::as_bytes(std::span(&number, 1)), soon());
    }
    for (std::uint64_t tag : {3u, 1u, 0u, 2u}) {
      for (int i = 0; i < kMessages / 4; ++i) {
        const std::vector<std::byte> data = receive_all(transport, previous_of(transport), Tag{tag});
        int number = -1;
        ASSERT_EQ(data.size(), sizeof number);
        std::memcpy(&number, data.data(), sizeof number);
        EXPECT_EQ(number, i * 4 + static_cast<int>(tag));
      }
    }
  });
}

TEST_P(TransportContract, KeepsManyLongMessagesInFlight) {
  constexpr std::size_t kBytes = 3 * kEagerBytes;
  constexpr std::uint64_t kMessages = 200;
  run(2, [&](Transport& transport) {
    const std::vector<std::byte> data = pattern(kBytes, transport.rank().value);
    std::vector<SendTicket> tickets;
    for (std::uint64_t i = 0; i < kMessages; ++i)
      tickets.push_back(transport.start_send(next_of(transport), Tag{i}, data));
    for (std::uint64_t i = kMessages; i-- > 0;) {
      EXPECT_TRUE(
          same(receive_all(transport, previous_of(transport), Tag{i}), pattern(kBytes, previous_of(transport).value)));
    }
    for (SendTicket ticket : tickets) transport.finish_send(ticket, soon());
  });
}

TEST_P(TransportContract, RefusesAPayloadOfAnotherLengthThanTheMessages) {
  run(2, [&](Transport& transport) {
    const auto data = pattern(10, 1);
    const SendTicket ticket = transport.start_send(next_of(transport), Tag{1}, data);
    {
      const Delivery delivery = transport.receive(previous_of(transport), Tag{1}, soon());
      std::vector<std::byte> wrong(9);
      EXPECT_THROW(delivery.copy_to(wrong), UsageError);
      std::vector<std::byte> right(10);
      delivery.copy_to(right);
      EXPECT_EQ(right, data);
    }
    transport.finish_send(ticket, soon());
  });
}

TEST_P(TransportContract, EndsAReceiveAtItsDeadlineNamingWhoIsLate) {
  run(2, [&](Transport& transport) {
    const Failure failure = failure_of([&] { transport.receive(next_of(transport), Tag{1}, at_once()); });
    EXPECT_EQ(failure.kind, FailureKind::late);
    EXPECT_EQ(failure.ranks, std::vector{next_of(transport)});
    meet(transport, Tag{2});  // lateness alone breaks nothing
  });
}

TEST_P(TransportContract, EndsASendAtItsDeadlineAndNobodyReadsThePayloadAfterwards) {
  run(2, [&](Transport& transport) {
    if (transport.rank() == Rank{0}) {
      auto data = std::make_unique<std::vector<std::byte>>(pattern(100 * kEagerBytes, 1));
      const Failure failure = failure_of([&] { send(transport, Rank{1}, Tag{1}, *data, at_once()); });
      EXPECT_EQ(failure.kind, FailureKind::late);
      EXPECT_EQ(failure.ranks, std::vector{Rank{1}});
      data.reset();
    }
    meet(transport, Tag{2});
    if (transport.rank() == Rank{1}) {
      EXPECT_EQ(failure_of([&] { transport.receive(Rank{0}, Tag{1}, at_once()); }).kind, FailureKind::late);
    }
    meet(transport, Tag{3});
  });
}

TEST_P(TransportContract, TakesBackACancelledMessage) {
  run(2, [&](Transport& transport) {
    if (transport.rank() == Rank{0}) {
      for (std::size_t bytes : {std::size_t{8}, 2 * kEagerBytes}) {
        auto data = std::make_unique<std::vector<std::byte>>(pattern(bytes, 1));
        transport.cancel_send(transport.start_send(Rank{1}, Tag{1}, *data));
      }
    }
    meet(transport, Tag{2});
    if (transport.rank() == Rank{1}) {
      EXPECT_EQ(failure_of([&] { transport.receive(Rank{0}, Tag{1}, at_once()); }).kind, FailureKind::late);
    }
    meet(transport, Tag{3});
  });
}

TEST_P(TransportContract, ShowsAPayloadPieceByPieceFromItsBeginningToItsEnd) {
  for (std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{1000}, kEagerBytes + 8, std::size_t{3} << 20}) {
    run(2, [&](Transport& transport) {
      const auto data = pattern(bytes, transport.rank().value);
      const SendTicket ticket = transport.start_send(next_of(transport), Tag{1}, data);
      const auto expected = pattern(bytes, previous_of(transport).value);
      std::size_t seen = 0;
      {
        const Delivery delivery = transport.receive(previous_of(transport), Tag{1}, soon());
        delivery.read([&](std::size_t offset, std::span<const std::byte> piece) {
          EXPECT_EQ(offset, seen);
          EXPECT_EQ(offset % Delivery::kPieceAlignment, 0u);
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % sizeof(double), 0u);
          ASSERT_LE(offset + piece.size(), bytes);
          EXPECT_TRUE(same(piece, std::span(expected).subspan(offset, piece.size())));
          seen += piece.size();
        });
      }
      EXPECT_EQ(seen, bytes);
      transport.finish_send(ticket, soon());
    });
  }
}

TEST_P(TransportContract, ADeliveryThatNobodyReadsLetsItsSenderGo) {
  run(2, [&](Transport& transport) {
    const auto data = pattern(100 * kEagerBytes, transport.rank().value);
    const SendTicket ticket = transport.start_send(next_of(transport), Tag{1}, data);
    { const Delivery unread = transport.receive(previous_of(transport), Tag{1}, soon()); }
    transport.finish_send(ticket, soon());
    const SendTicket next = transport.start_send(next_of(transport), Tag{1}, data);
    {
      const Delivery half_read = transport.receive(previous_of(transport), Tag{1}, soon());
      EXPECT_THROW(half_read.read([](std::size_t, std::span<const std::byte>) { throw std::runtime_error("enough"); }),
                   std::runtime_error);
    }
    transport.finish_send(next, soon());
    meet(transport, Tag{2});
  });
}

// --- what is expected ---

TEST_P(TransportContract, ALongMessageArrivesWholeWhetherItIsExpectedBeforeOrAfterItWasSent) {
  enum class Expected { before, after, at_the_same_time };
  for (std::size_t bytes : {kEagerBytes + 1, kLongBytes}) {
    for (Expected when : {Expected::before, Expected::after, Expected::at_the_same_time}) {
      run(3, [&](Transport& transport) {
        const auto data = pattern(bytes, transport.rank().value);
        const Rank from = previous_of(transport);
        // Who has met has also heard what the others said before.
        if (when == Expected::before) {
          transport.expect(from, Tag{1});
          meet(transport, Tag{2});
        }
        const SendTicket ticket = transport.start_send(next_of(transport), Tag{1}, data);
        if (when == Expected::after) meet(transport, Tag{2});
        if (when != Expected::before) transport.expect(from, Tag{1});
        EXPECT_TRUE(same(receive_all(transport, from, Tag{1}), pattern(bytes, from.value))) << bytes << " bytes";
        transport.finish_send(ticket, soon());
      });
    }
  }
}

TEST_P(TransportContract, ExpectedMessagesMayBeReceivedInAnyOrder) {
  for (bool in_order : {true, false}) {
    run(2, [&](Transport& transport) {
      const auto data = pattern(kLongBytes, transport.rank().value);
      const Rank from = previous_of(transport);
      for (Tag tag : {Tag{1}, Tag{2}}) transport.expect(from, tag);
      meet(transport, Tag{3});
      std::vector<SendTicket> tickets;
      for (Tag tag : {Tag{1}, Tag{2}}) tickets.push_back(transport.start_send(next_of(transport), tag, data));
      for (Tag tag : {Tag{in_order ? 1u : 2u}, Tag{in_order ? 2u : 1u}}) {
        EXPECT_TRUE(same(receive_all(transport, from, tag), pattern(kLongBytes, from.value)));
      }
      for (SendTicket ticket : tickets) transport.finish_send(ticket, soon());
    });
  }
}

// What the sender was told to send, and what the receiver said it expects, may be two messages of one tag.
TEST_P(TransportContract, OneOfSeveralMessagesOfATagMayBeExpected) {
  run(2, [&](Transport& transport) {
    const Rank from = previous_of(transport);
    for (int round = 0; round < 5; ++round) {
      const std::vector<std::vector<std::byte>> data{pattern(kLongBytes, 2 * round),
                                                     pattern(kLongBytes, 2 * round + 1)};
      std::vector<SendTicket> tickets;
      for (const auto& payload : data) tickets.push_back(transport.start_send(next_of(transport), Tag{1}, payload));
      {
        const Delivery first = transport.receive(from, Tag{1}, soon());
        if (round > 0) transport.expect(from, Tag{1});  // that is, the second
        std::vector<std::byte> received(first.header().length);
        first.copy_to(received);
        EXPECT_TRUE(same(received, data[0]));
      }
      EXPECT_TRUE(same(receive_all(transport, from, Tag{1}), data[1]));
      for (SendTicket ticket : tickets) transport.finish_send(ticket, soon());
    }
  });
}

// Rank 1 says that it expects a message while several of that tag, of which one was taken back, are on their way to it
// behind another that it reads. Rank 2 tells it when they are.
TEST_P(TransportContract, WhatIsExpectedMayBeOnItsWayAlready) {
  for (bool takes_back : {false, true}) {
    run(3, [&](Transport& transport) {
      const auto ahead = pattern(kLongBytes, 0);
      const auto data = pattern(kLongBytes, 1);
      const auto more = pattern(kLongBytes, 2);
      if (transport.rank() == Rank{0}) {
        const SendTicket first = transport.start_send(Rank{1}, Tag{1}, ahead);
        receive_all(transport, Rank{2}, Tag{2});
        const SendTicket second = transport.start_send(Rank{1}, Tag{1}, data);
        const SendTicket third = transport.start_send(Rank{1}, Tag{1}, more);
        if (takes_back) transport.cancel_send(second);
        send(transport, Rank{2}, Tag{2}, {}, soon());
        transport.finish_send(first, soon());
        if (!takes_back) transport.finish_send(second, soon());
        transport.finish_send(third, soon());
      } else if (transport.rank() == Rank{1}) {
        bool expected = false;
        transport.receive(Rank{0}, Tag{1}, soon()).read([&](std::size_t, std::span<const std::byte>) {
          if (std::exchange(expected, true)) return;
          send(transport, Rank{2}, Tag{2}, {}, soon());
          receive_all(transport, Rank{2}, Tag{2});
          transport.expect(Rank{0}, Tag{1});
        });
        if (!takes_back) {
          EXPECT_TRUE(same(receive_all(transport, Rank{0}, Tag{1}), data));
        }
        EXPECT_TRUE(same(receive_all(transport, Rank{0}, Tag{1}), more));
      } else {
        receive_all(transport, Rank{1}, Tag{2});
        send(transport, Rank{0}, Tag{2}, {}, soon());
        receive_all(transport, Rank{0}, Tag{2});
        send(transport, Rank{1}, Tag{2}, {}, soon());
      }
      meet(transport, Tag{3});
    });
  }
}

TEST_P(TransportContract, AnExpectationThatIsNotMetDoesNoHarm) {
  run(3, [&](Transport& transport) {
    const auto data = pattern(kLongBytes, transport.rank().value);
    const Rank from = previous_of(transport);
    for (int i = 0; i < 3; ++i) transport.expect(from, Tag{1});
    for (Rank peer : all_ranks(3)) transport.expect(peer, Tag{2});
    meet(transport, Tag{3});
    // Others go ahead; then come a short one, which need not be expected, a long one, and one that is taken back.
    for (std::size_t bytes : {std::size_t{8}, kLongBytes, std::size_t{0}, kLongBytes}) {
      for (Tag tag : {Tag{4}, Tag{1}}) {
        const SendTicket ticket = transport.start_send(next_of(transport), tag, std::span(data).first(bytes));
        EXPECT_TRUE(same(receive_all(transport, from, tag), pattern(bytes, from.value)));
        transport.finish_send(ticket, soon());
      }
      transport.cancel_send(transport.start_send(next_of(transport), Tag{2}, data));
    }
    // A world that ends with expectations that were not met leaves those of others alone.
    const std::vector<Rank> all{Rank{0}, Rank{1}, Rank{2}};
    transport.regroup(all, soon())->expect(from, Tag{5});
    const std::unique_ptr<Transport> group = transport.regroup(all, soon());
    const SendTicket ticket = group->start_send(next_of(*group), Tag{5}, data);
    EXPECT_TRUE(same(receive_all(*group, from, Tag{5}), pattern(kLongBytes, from.value)));
    group->finish_send(ticket, soon());
  });
}

// --- several threads ---

TEST_P(TransportContract, TwoThreadsOfARankExchangeLongMessagesAtOnce) {
  run(3, [&](Transport& transport) {
    const int me = transport.rank().value;
    const auto exchange = [&](std::uint64_t tag) {
      for (int round = 0; round < 8; ++round) {
        const auto seed = [&](int rank) { return rank + round * 3 + static_cast<int>(tag) * 50; };
        const auto data = pattern(kLongBytes / 4 + tag, seed(me));
        std::vector<SendTicket> tickets;
        for (Rank peer : all_ranks(3)) {
          if (tag == 2) transport.expect(peer, Tag{tag});
          tickets.push_back(transport.start_send(peer, Tag{tag}, data));
        }
        for (Rank peer : all_ranks(3)) {
          EXPECT_TRUE(same(receive_all(transport, peer, Tag{tag}), pattern(kLongBytes / 4 + tag, seed(peer.value))));
        }
        for (SendTicket ticket : tickets) transport.finish_send(ticket, soon());
      }
    };
    const auto guarded = [&](std::uint64_t tag) {
      try {
        exchange(tag);
      } catch (const std::exception& error) {
        ADD_FAILURE() << to_string(transport.rank()) << " threw: " << error.what();
      }
    };
    const std::jthread first([&] { guarded(1); });
    const std::jthread second([&] { guarded(2); });
  });
}

TEST_P(TransportContract, ALongMessageToItselfReachesAnotherThread) {
  run(1, [&](Transport& transport) {
    for (int round = 0; round < 50; ++round) {
      std::atomic<bool> started = false;
      std::vector<std::byte> received;
      {
        const std::jthread receiver([&] {
          started = true;
          try {
            received = receive_all(transport, Rank{0}, Tag{1});
          } catch (const std::exception& error) {
            ADD_FAILURE() << "it threw: " << error.what();
          }
        });
        // In most rounds the other thread waits by then, in some it already sleeps.
        while (!started.load()) std::this_thread::yield();
        for (int i = 0; i < 20 * round; ++i) std::this_thread::yield();
        send(transport, Rank{0}, Tag{1}, pattern(10 * kEagerBytes, round), soon());
      }
      EXPECT_TRUE(same(received, pattern(10 * kEagerBytes, round)));
    }
  });
}

// --- what is taken back ---

// The sender's memory is its own again at once, and the receiver, which holds the message, has all of it or hears that
// it will not come. (Where the receiver reads the sender's memory, the sender waits for that: so the receiver does not
// wait for the sender's word for long.)
TEST_P(TransportContract, TakesBackAMessageThatItsReceiverHolds) {
  for (bool has_begun : {false, true}) {
    run(2, [&](Transport& transport) {
      if (transport.rank() == Rank{0}) {
        auto data = std::make_unique<std::vector<std::byte>>(pattern(kLongBytes, 1));
        const SendTicket ticket = transport.start_send(Rank{1}, Tag{1}, *data);
        receive_all(transport, Rank{1}, Tag{2});
        transport.cancel_send(ticket);
        std::ranges::fill(*data, std::byte{0xee});
        data.reset();
        send(transport, Rank{1}, Tag{3}, {}, soon());
      } else {
        const auto expected = pattern(kLongBytes, 1);
        std::size_t seen = 0;
        bool told = false;
        const auto tell_and_wait = [&] {
          if (std::exchange(told, true)) return;
          send(transport, Rank{0}, Tag{2}, {}, soon());
          try {
            transport.receive(Rank{0}, Tag{3}, Deadline::after(100ms));
          } catch (const PeerError& late) {
            EXPECT_EQ(late.kind(), FailureKind::late);
          }
        };
        {
          const Delivery delivery = transport.receive(Rank{0}, Tag{1}, soon());
          if (!has_begun) tell_and_wait();
          try {
            delivery.read([&](std::size_t offset, std::span<const std::byte> piece) {
              EXPECT_EQ(offset, seen);
              EXPECT_TRUE(same(piece, std::span(expected).subspan(offset, piece.size())));
              seen += piece.size();
              tell_and_wait();
            });
            EXPECT_EQ(seen, kLongBytes);
          } catch (const PeerError& error) {
            EXPECT_LT(seen, kLongBytes);
            EXPECT_EQ(error.kind(), FailureKind::late);
            EXPECT_EQ(error.ranks(), std::vector{Rank{0}});
            EXPECT_NE(std::string(error.what()).find("took a message back"), std::string::npos) << error.what();
          }
        }
      }
      // Both go on.
      const SendTicket ticket = transport.start_send(next_of(transport), Tag{4}, pattern(8, 1));
      EXPECT_TRUE(same(receive_all(transport, previous_of(transport), Tag{4}), pattern(8, 1)));
      transport.finish_send(ticket, soon());
    });
  }
}

}  // namespace
}  // namespace tutti::testing
