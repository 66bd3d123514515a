#include "transport_contract.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;

const std::vector<int> kSizes{1, 2, 3, 5, 8};

Deadline soon() { return Deadline::after(30s); }
Deadline at_once() { return Deadline::after(5ms); }

Rank next_of(const Transport& transport) { return Rank{(transport.rank().value + 1) % transport.size()}; }
Rank previous_of(const Transport& transport) {
  return Rank{(transport.rank().value + transport.size() - 1) % transport.size()};
}

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(seed) * 7);
  return data;
}

std::vector<std::byte> receive_all(Transport& transport, Rank from, Tag tag) {
  const Delivery delivery = transport.receive(from, tag, soon());
  std::vector<std::byte> data(delivery.header().length);
  delivery.copy_to(data);
  return data;
}

// Everybody has come, by messages alone.
void meet(Transport& transport, Tag tag) {
  for (Rank peer : all_ranks(transport.size())) send(transport, peer, tag, {}, soon());
  for (Rank peer : all_ranks(transport.size())) receive_all(transport, peer, tag);
}

template <typename F>
Failure failure_of(F f) {
  try {
    f();
  } catch (const PeerError& error) {
    return error.failure();
  }
  ADD_FAILURE() << "expected a PeerError";
  return {};
}

TEST_P(TransportContract, TellsEachRankWhoItIsAndHowManyThereAre) {
  for (int ranks : kSizes) {
    run(ranks, [&](Transport& transport) {
      EXPECT_EQ(transport.size(), ranks);
      EXPECT_EQ(transport.locality(transport.rank()), Locality::same_address_space);
      for (Rank peer : all_ranks(ranks)) EXPECT_EQ(transport.locality(peer), transport.locality(peer));
      EXPECT_FALSE(transport.failure());
      const int mine = transport.rank().value;
      for (Rank peer : all_ranks(ranks)) send(transport, peer, Tag{1}, std::as_bytes(std::span(&mine, 1)), soon());
      for (Rank peer : all_ranks(ranks)) {
        int theirs = -1;
        transport.receive(peer, Tag{1}, soon()).copy_to(std::as_writable_bytes(std::span(&theirs, 1)));
        EXPECT_EQ(theirs, peer.value);
      }
    });
  }
}

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
          EXPECT_EQ(receive_all(transport, peer, Tag{bytes}), pattern(bytes, peer.value)) << bytes << " bytes";
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
      EXPECT_EQ(receive_all(transport, previous_of(transport), Tag{i}), pattern(kBytes, previous_of(transport).value));
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

TEST_P(TransportContract, RefusesARankThatDoesNotExist) {
  run(2, [&](Transport& transport) {
    for (int wrong : {-1, 2, 1000}) {
      EXPECT_THROW(transport.start_send(Rank{wrong}, Tag{1}, {}), UsageError);
      EXPECT_THROW(transport.receive(Rank{wrong}, Tag{1}, at_once()), UsageError);
      EXPECT_THROW(transport.locality(Rank{wrong}), UsageError);
    }
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

TEST_P(TransportContract, EndsEveryWaitWithTheFirstFailureWhenAborted) {
  for (int ranks : {2, 3, 5}) {
    run(ranks, [&](Transport& transport) {
      const auto data = pattern(2 * kEagerBytes, 1);
      Failure failure;
      if (transport.rank() == Rank{0}) {
        // After the others' message, which is their last sign before they wait.
        for (Rank peer : all_ranks(ranks)) {
          if (peer != Rank{0}) receive_all(transport, peer, Tag{1});
        }
        transport.abort({FailureKind::cancelled, {Rank{0}}, "enough"});
        transport.abort({FailureKind::cancelled, {Rank{0}}, "more than enough"});
        failure = failure_of([&] { transport.receive(Rank{1}, Tag{9}, soon()); });
      } else {
        failure = failure_of([&] {
          send(transport, Rank{0}, Tag{1}, {}, soon());
          if (transport.rank().value % 2 == 1) transport.receive(Rank{0}, Tag{2}, soon());
          send(transport, Rank{0}, Tag{3}, data, soon());
        });
      }
      EXPECT_EQ(failure.kind, FailureKind::cancelled);
      EXPECT_EQ(failure.message, "enough");
      ASSERT_TRUE(transport.failure());
      EXPECT_EQ(transport.failure()->message, "enough");
    });
  }
}

TEST_P(TransportContract, EndsWaitsForARankThatDepartsButDeliversWhatItSent) {
  run(3, [&](Transport& transport) {
    if (transport.rank() == Rank{2}) {
      for (Rank peer : {Rank{0}, Rank{1}}) send(transport, peer, Tag{1}, pattern(5, 2), soon());
      transport.depart("has gone fishing");
      return;
    }
    const Failure failure = failure_of([&] { transport.receive(Rank{2}, Tag{2}, soon()); });
    EXPECT_EQ(failure.kind, FailureKind::lost);
    EXPECT_EQ(failure.ranks, std::vector{Rank{2}});
    EXPECT_NE(failure.message.find("gone fishing"), std::string::npos) << failure.message;
    EXPECT_EQ(receive_all(transport, Rank{2}, Tag{1}), pattern(5, 2));
    const auto data = pattern(2 * kEagerBytes, 1);
    EXPECT_EQ(failure_of([&] { send(transport, Rank{2}, Tag{3}, data, soon()); }).kind, FailureKind::lost);
    // The others still reach each other.
    const Rank other{1 - transport.rank().value};
    send(transport, other, Tag{4}, {}, soon());
    receive_all(transport, other, Tag{4});
  });
}

TEST_P(TransportContract, CountsARankAsGoneWhenItsTransportIsDestroyed) {
  run(2, [&](Transport& transport) {
    if (transport.rank() == Rank{1}) return;
    const Failure failure = failure_of([&] { transport.receive(Rank{1}, Tag{1}, soon()); });
    EXPECT_EQ(failure.kind, FailureKind::lost);
    EXPECT_EQ(failure.ranks, std::vector{Rank{1}});
  });
}

TEST_P(TransportContract, TellsForWhomAPeerIsWaiting) {
  run(3, [&](Transport& transport) {
    // 0 is late for 1; 1 waits for 0, and 2 for 1.
    const Rank expected{0};
    if (transport.rank() == Rank{1}) {
      meet(transport, Tag{1});
      receive_all(transport, Rank{0}, Tag{2});
      send(transport, Rank{2}, Tag{3}, {}, soon());
    } else if (transport.rank() == Rank{2}) {
      meet(transport, Tag{1});
      receive_all(transport, Rank{1}, Tag{3});
    } else {
      EXPECT_EQ(transport.held_up_by(expected), expected);
      meet(transport, Tag{1});
      const Deadline deadline = soon();
      while (transport.held_up_by(Rank{1}) != Rank{0} || transport.held_up_by(Rank{2}) != Rank{1}) {
        ASSERT_FALSE(deadline.passed());
        std::this_thread::yield();
      }
      send(transport, Rank{1}, Tag{2}, {}, soon());
    }
  });
}

TEST_P(TransportContract, RegroupsMembersInTheOrderOfTheirList) {
  run(5, [&](Transport& transport) {
    const std::vector<Rank> odd{Rank{3}, Rank{1}};
    const std::vector<Rank> even{Rank{4}, Rank{0}, Rank{2}};
    const bool is_odd = transport.rank().value % 2 == 1;
    const std::vector<Rank>& members = is_odd ? odd : even;
    for (int round = 0; round < 3; ++round) {  // the same list again and again
      const std::unique_ptr<Transport> group = transport.regroup(members, soon());
      ASSERT_EQ(group->size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[static_cast<std::size_t>(group->rank().value)], transport.rank());
      const auto data = pattern(2 * kEagerBytes, transport.rank().value);
      const SendTicket ticket = group->start_send(next_of(*group), Tag{1}, data);
      EXPECT_EQ(receive_all(*group, previous_of(*group), Tag{1}),
                pattern(2 * kEagerBytes, members[static_cast<std::size_t>(previous_of(*group).value)].value));
      group->finish_send(ticket, soon());
    }
    meet(transport, Tag{1});
  });
}

TEST_P(TransportContract, RegroupsInAnAbortedWorld) {
  run(3, [&](Transport& transport) {
    if (transport.rank() == Rank{0}) {
      for (Rank peer : {Rank{1}, Rank{2}}) receive_all(transport, peer, Tag{1});
      return transport.abort({FailureKind::lost, {Rank{0}}, "broken"});
    }
    transport.start_send(Rank{0}, Tag{1}, {});  // not finished: the world may be aborted by then
    const std::vector<Rank> survivors{Rank{1}, Rank{2}};
    const std::unique_ptr<Transport> group = transport.regroup(survivors, soon());
    EXPECT_FALSE(group->failure());
    meet(*group, Tag{1});
  });
}

TEST_P(TransportContract, RefusesToRegroupByDifferentLists) {
  run(3, [&](Transport& transport) {
    const std::vector<Rank> all{Rank{0}, Rank{1}, Rank{2}};
    const std::vector<Rank> two{Rank{1}, Rank{2}};
    const bool differs = transport.rank() == Rank{2};
    const Failure failure = failure_of([&] { transport.regroup(differs ? two : all, soon()); });
    EXPECT_EQ(failure.kind, FailureKind::disagreement);
    const std::unique_ptr<Transport> group = transport.regroup(all, soon());
    meet(*group, Tag{1});
  });
}

TEST_P(TransportContract, RegroupsIntoRowsAndThenColumns) {
  for (int round = 0; round < 20; ++round) {
    run(4, [&](Transport& transport) {
      const int me = transport.rank().value;
      const std::vector<Rank> row{Rank{me / 2 * 2}, Rank{me / 2 * 2 + 1}};
      const std::vector<Rank> column{Rank{me % 2}, Rank{me % 2 + 2}};
      const std::unique_ptr<Transport> first = transport.regroup(row, soon());
      const std::unique_ptr<Transport> second = transport.regroup(column, soon());
      meet(*first, Tag{1});
      meet(*second, Tag{1});
      meet(transport, Tag{1});
    });
  }
}

TEST_P(TransportContract, RefusesToRegroupWithoutOneself) {
  run(2, [&](Transport& transport) {
    const std::vector<Rank> other{next_of(transport)};
    const std::vector<Rank> twice{transport.rank(), transport.rank()};
    const std::vector<Rank> unknown{transport.rank(), Rank{7}};
    EXPECT_THROW(transport.regroup(other, soon()), UsageError);
    EXPECT_THROW(transport.regroup(twice, soon()), UsageError);
    EXPECT_THROW(transport.regroup(unknown, soon()), UsageError);
    EXPECT_THROW(transport.regroup({}, soon()), UsageError);
  });
}

TEST_P(TransportContract, EndsARegroupingWhoseMembersAreLateOrLost) {
  run(3, [&](Transport& transport) {
    const std::vector<Rank> all{Rank{0}, Rank{1}, Rank{2}};
    meet(transport, Tag{1});
    if (transport.rank() != Rank{2}) {
      const Failure late = failure_of([&] { transport.regroup(all, Deadline::after(20ms)); });
      EXPECT_EQ(late.kind, FailureKind::late);
      // On a busy machine the other one may be late as well.
      EXPECT_NE(std::ranges::find(late.ranks, Rank{2}), late.ranks.end()) << late.message;
    }
    meet(transport, Tag{2});
    if (transport.rank() == Rank{2}) return transport.depart("has left");
    const Failure lost = failure_of([&] { transport.regroup(all, soon()); });
    EXPECT_EQ(lost.kind, FailureKind::lost);
    EXPECT_EQ(lost.ranks, std::vector{Rank{2}}) << lost.message;
    // Neither leaves before the other has looked.
    const Rank other{1 - transport.rank().value};
    send(transport, other, Tag{3}, {}, soon());
    receive_all(transport, other, Tag{3});
  });
}

TEST_P(TransportContract, TellsGroupsThatAMemberDeparted) {
  run(2, [&](Transport& transport) {
    const std::vector<Rank> swapped{Rank{1}, Rank{0}};
    const std::unique_ptr<Transport> group = transport.regroup(swapped, soon());
    if (transport.rank() == Rank{0}) {
      transport.depart("has left the house");
      // Alive as an object, gone as a rank.
      EXPECT_EQ(failure_of([&] { group->receive(Rank{0}, Tag{1}, soon()); }).kind, FailureKind::lost);
      return;
    }
    const Failure failure = failure_of([&] { group->receive(Rank{1}, Tag{1}, soon()); });
    EXPECT_EQ(failure.kind, FailureKind::lost);
    EXPECT_EQ(failure.ranks, std::vector{Rank{1}});
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
          EXPECT_TRUE(std::ranges::equal(piece, std::span(expected).subspan(offset, piece.size())));
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

TEST_P(TransportContract, HasABoardOnlyWhereRanksAreOfOneHost) {
  run(3, [&](Transport& transport) {
    Locality farthest = Locality::same_address_space;
    for (Rank peer : all_ranks(3)) farthest = std::max(farthest, transport.locality(peer));
    const bool has_board = transport.shared_board() != nullptr;
    EXPECT_FALSE(has_board && farthest == Locality::remote);
    EXPECT_TRUE(has_board || farthest != Locality::same_address_space);
  });
}

}  // namespace
}  // namespace tutti::testing
