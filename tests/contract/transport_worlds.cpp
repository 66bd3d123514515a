// Worlds: who is in them, how they break, how ranks leave them and form new ones.
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "contract_steps.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;

TEST_P(TransportContract, TellsEachRankWhoItIsAndHowManyThereAre) {
  for (int ranks : kSizes) {
    run(ranks, [&](Transport& transport) {
      EXPECT_EQ(transport.size(), ranks);
      EXPECT_EQ(transport.locality(transport.rank()), Locality::same_address_space);
      for (Rank peer : all_ranks_but(transport.rank(), ranks)) {
        EXPECT_EQ(transport.locality(peer), GetParam().locality);
      }
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

TEST_P(TransportContract, RefusesARankThatDoesNotExist) {
  run(2, [&](Transport& transport) {
    for (int wrong : {-1, 2, 1000}) {
      EXPECT_THROW(transport.start_send(Rank{wrong}, Tag{1}, {}), UsageError);
      EXPECT_THROW(transport.receive(Rank{wrong}, Tag{1}, at_once()), UsageError);
      EXPECT_THROW(transport.locality(Rank{wrong}), UsageError);
    }
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
    EXPECT_TRUE(same(receive_all(transport, Rank{2}, Tag{1}), pattern(5, 2)));
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
      const Rank previous = members[static_cast<std::size_t>(previous_of(*group).value)];
      EXPECT_TRUE(same(receive_all(*group, previous_of(*group), Tag{1}), pattern(2 * kEagerBytes, previous.value)));
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

TEST_P(TransportContract, ATransportMayGoWhileItsMessagesAreOnTheirWay) {
  for (bool is_expected : {false, true}) {
    run(3, [&](Transport& transport) {
      const std::vector<Rank> all{Rank{0}, Rank{1}, Rank{2}};
      const auto data = pattern(kLongBytes, transport.rank().value);
      std::unique_ptr<Transport> group = transport.regroup(all, soon());
      if (transport.rank() == Rank{0}) {
        for (Tag tag : {Tag{1}, Tag{2}}) {
          for (Rank peer : all) group->start_send(peer, tag, data);
        }
        // One of them is being read, the other is not.
        for (Rank peer : {Rank{1}, Rank{2}}) receive_all(transport, peer, Tag{3});
        group.reset();
      } else {
        if (is_expected) group->expect(Rank{0}, Tag{2});
        std::size_t seen = 0;
        const auto expected = pattern(kLongBytes, 0);
        for (Tag tag : {Tag{1}, Tag{2}}) {
          seen = 0;
          try {
            group->receive(Rank{0}, tag, soon()).read([&](std::size_t offset, std::span<const std::byte> piece) {
              if (tag == Tag{1} && seen == 0) send(transport, Rank{0}, Tag{3}, {}, soon());
              EXPECT_TRUE(same(piece, std::span(expected).subspan(offset, piece.size())));
              seen += piece.size();
            });
            EXPECT_EQ(seen, kLongBytes);
          } catch (const PeerError& error) {
            EXPECT_EQ(error.kind(), FailureKind::lost) << error.what();
            EXPECT_EQ(error.ranks(), std::vector{Rank{0}});
          }
        }
      }
      // The world that the group was made of is whole.
      meet(transport, Tag{4});
      EXPECT_FALSE(transport.failure());
    });
  }
}

TEST_P(TransportContract, AGroupThatBrokeBeforeAMemberWasReadyIsHandedOverAndBroken) {
  run(3, [](Transport& transport) {
    const std::vector<Rank> everybody{Rank{0}, Rank{1}, Rank{2}};
    for (int round = 0; round < 20; ++round) {
      const std::unique_ptr<Transport> group = transport.regroup(everybody, soon());
      if (group->rank() == Rank{round % 3}) group->abort({FailureKind::cancelled, {group->rank()}, "was enough"});
      try {
        static_cast<void>(group->receive(Rank{(group->rank().value + 1) % 3}, Tag{1}, soon()));
        ADD_FAILURE() << "no error";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.ranks(), std::vector{Rank{round % 3}}) << error.what();
      }
      meet(transport, Tag{static_cast<std::uint64_t>(100 + round)});
    }
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
