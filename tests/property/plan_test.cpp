// Plans, before a byte moves: what is sent is received, nothing is overwritten while it is on its way, and the numbers
// are those of docs/algorithms.md.
#include <tutti/collective/plan.hpp>

#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>

#include <gtest/gtest.h>

namespace tutti {
namespace {

const std::vector<AllReduceStrategy> kAlgorithms{
    Centralized{}, Tree{1}, Tree{2}, Tree{3}, Tree{1000}, Ring{}, RecursiveDoubling{}, HalvingDoubling{}};
const std::vector<int> kSizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16};

std::vector<std::size_t> lengths_for(int size) {
  const auto p = static_cast<std::size_t>(size);
  return {0, 1, p - 1, p, p + 1, 2 * p - 1, 97};
}

template <typename F>
void for_each_request(F f) {
  for (int size : kSizes) {
    for (std::size_t length : lengths_for(size)) {
      for (bool reproducible : {false, true}) {
        for (const AllReduceStrategy& algorithm : kAlgorithms) {
          f(PlanRequest{CallKind::all_reduce, algorithm, {}, size, length, {}, reproducible});
          if (std::holds_alternative<RecursiveDoubling>(algorithm) ||
              std::holds_alternative<HalvingDoubling>(algorithm))
            continue;
          for (int root : {0, size / 2, size - 1}) {
            f(PlanRequest{CallKind::reduce, algorithm, {}, size, length, Rank{root}, reproducible});
            if (!reproducible) f(PlanRequest{CallKind::broadcast, algorithm, {}, size, length, Rank{root}, false});
          }
        }
        f(PlanRequest{CallKind::reduce_scatter, Ring{}, {}, size, length, {}, reproducible});
      }
      for (CallKind call : {CallKind::all_gather, CallKind::all_to_all, CallKind::barrier}) {
        f(PlanRequest{call, Ring{}, {}, size, length, {}, false});
      }
      for (int root : {0, size / 2, size - 1}) {
        f(PlanRequest{CallKind::gather, Ring{}, {}, size, length, Rank{root}, false});
        f(PlanRequest{CallKind::scatter, Ring{}, {}, size, length, Rank{root}, false});
      }
    }
  }
}

std::string describe(const PlanRequest& request) {
  return std::string(to_string(request.call)) + " " + to_string(request.algorithm) + " on " +
         std::to_string(request.size) + " ranks, length " + std::to_string(request.length) + ", root " +
         std::to_string(request.root.value) + (request.reproducible ? ", reproducible" : "");
}

std::vector<Plan> plans_of(PlanRequest request) {
  std::vector<Plan> plans(static_cast<std::size_t>(request.size));
  for (Rank rank : all_ranks(request.size)) {
    request.rank = rank;
    make_plan(request, plans[static_cast<std::size_t>(rank.value)]);
  }
  return plans;
}

bool receives(const Action& action) {
  return action.kind == ActionKind::receive || action.kind == ActionKind::receive_fold;
}

bool writes(const Action& action) { return action.kind != ActionKind::send && action.kind != ActionKind::settle; }

bool overlap(const Region& a, const Region& b, bool in_place) {
  const auto same = [&] {
    if (a.memory == b.memory) return true;
    return in_place && a.memory != Memory::scratch && b.memory != Memory::scratch;
  };
  return same() && a.slice.first < b.slice.end() && b.slice.first < a.slice.end();
}

TEST(Plan, SendsWhatIsReceivedInTheSameStepAndOrder) {
  for_each_request([](const PlanRequest& request) {
    SCOPED_TRACE(describe(request));
    std::map<std::tuple<int, int, int>, std::vector<std::size_t>> sent;
    std::map<std::tuple<int, int, int>, std::vector<std::size_t>> received;
    const std::vector<Plan> plans = plans_of(request);
    for (int rank = 0; rank < request.size; ++rank) {
      for (const Action& action : plans[static_cast<std::size_t>(rank)].actions) {
        if (action.kind == ActionKind::send) {
          sent[{rank, action.peer.value, action.step}].push_back(action.region.slice.count);
        }
        if (receives(action)) received[{action.peer.value, rank, action.step}].push_back(action.region.slice.count);
      }
    }
    EXPECT_EQ(sent, received);
  });
}

TEST(Plan, StepsNeverGoBack) {
  for_each_request([](const PlanRequest& request) {
    SCOPED_TRACE(describe(request));
    for (const Plan& plan : plans_of(request)) {
      int step = 0;
      for (const Action& action : plan.actions) {
        EXPECT_GE(action.step, step);
        step = action.step;
      }
    }
  });
}

TEST(Plan, WritesNothingThatIsStillOnItsWayAndNeverTheSource) {
  for_each_request([](const PlanRequest& request) {
    SCOPED_TRACE(describe(request));
    const bool in_place =
        request.call == CallKind::all_reduce || request.call == CallKind::reduce || request.call == CallKind::broadcast;
    for (const Plan& plan : plans_of(request)) {
      std::vector<Region> on_the_way;
      int step = -1;
      for (const Action& action : plan.actions) {
        if (action.step != step || action.kind == ActionKind::settle) on_the_way.clear();
        step = action.step;
        if (action.kind == ActionKind::send) on_the_way.push_back(action.region);
        if (!writes(action)) continue;
        EXPECT_NE(action.region.memory, Memory::source);
        for (const Region& sent : on_the_way) EXPECT_FALSE(overlap(sent, action.region, in_place));
      }
    }
  });
}

TEST(Plan, StaysWithinItsMemory) {
  for_each_request([](const PlanRequest& request) {
    SCOPED_TRACE(describe(request));
    const auto p = static_cast<std::size_t>(request.size);
    const std::size_t n = request.length;
    const std::vector<Plan> plans = plans_of(request);
    for (int rank = 0; rank < request.size; ++rank) {
      const Plan& plan = plans[static_cast<std::size_t>(rank)];
      std::map<Memory, std::size_t> room{
          {Memory::source, n}, {Memory::destination, n}, {Memory::scratch, plan.scratch_length}};
      if (request.call == CallKind::all_gather || request.call == CallKind::gather) room[Memory::destination] = n * p;
      if (request.call == CallKind::scatter) room[Memory::source] = n * p;
      if (request.call == CallKind::all_to_all) room[Memory::source] = room[Memory::destination] = n * p;
      if (request.call == CallKind::reduce_scatter) room[Memory::destination] = chunk(n, request.size, rank).count;
      for (const Action& action : plan.actions) {
        if (action.kind == ActionKind::settle) continue;
        EXPECT_LE(action.region.slice.end(), room[action.region.memory]);
        if (action.kind == ActionKind::copy || action.kind == ActionKind::fold) {
          EXPECT_EQ(action.other.slice.count, action.region.slice.count);
          EXPECT_LE(action.other.slice.end(), room[action.other.memory]);
        }
        if (action.kind == ActionKind::fold_all) {
          EXPECT_EQ(plan.scratch_length, p * n);
          EXPECT_LE(action.other.slice.end(), n);
          EXPECT_EQ(action.other.slice.count, action.region.slice.count);
        }
      }
    }
  });
}

// Every rank goes as far as it can, as ranks do: no plan may leave anybody waiting.
TEST(Plan, NeverDeadlocks) {
  for_each_request([](const PlanRequest& request) {
    const std::vector<Plan> plans = plans_of(request);
    std::map<std::tuple<int, int, int>, int> on_the_way;
    std::vector<std::size_t> at(plans.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        const int me = static_cast<int>(rank);
        for (; at[rank] < plans[rank].actions.size(); ++at[rank], moved = true) {
          const Action& action = plans[rank].actions[at[rank]];
          if (action.kind == ActionKind::send) ++on_the_way[{me, action.peer.value, action.step}];
          if (receives(action) && --on_the_way[{action.peer.value, me, action.step}] < 0) {
            ++on_the_way[{action.peer.value, me, action.step}];
            break;
          }
        }
      }
    }
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      EXPECT_EQ(at[rank], plans[rank].actions.size()) << describe(request) << ", rank " << rank;
    }
  });
}

struct Expected {
  int steps;
  std::size_t sent;
};

void expect_counts(const PlanRequest& base, const std::function<Expected(int rank)>& expected) {
  SCOPED_TRACE(describe(base));
  const std::vector<Plan> plans = plans_of(base);
  std::size_t sent = 0;
  std::size_t received = 0;
  for (int rank = 0; rank < base.size; ++rank) {
    const PlanCount counted = count(plans[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(counted.steps, expected(rank).steps) << "rank " << rank;
    EXPECT_EQ(counted.elements_sent, expected(rank).sent) << "rank " << rank;
    sent += counted.elements_sent;
    received += counted.elements_received;
  }
  EXPECT_EQ(sent, received);
}

PlanRequest all_reduce_request(const AllReduceStrategy& algorithm, int size, std::size_t length, bool reproducible) {
  return {CallKind::all_reduce, algorithm, {}, size, length, {}, reproducible};
}

TEST(PlanCounts, CentralizedTakesTwoStepsAndTheCentreSendsToAll) {
  for (int p : {2, 3, 4, 5, 8}) {
    for (std::size_t n : {1u, 7u, 120u}) {
      for (bool reproducible : {false, true}) {
        expect_counts(all_reduce_request(Centralized{}, p, n, reproducible), [&](int rank) -> Expected {
          return {2, rank == 0 ? static_cast<std::size_t>(p - 1) * n : n};
        });
      }
    }
  }
}

// The tree of tree.cpp, told once more by its definition: the subtree of `first` with `count` ranks.
void walk_tree(int first, int count, int arity, int parent,
               const std::function<void(int rank, int parent, int subtree)>& f) {
  f(first, parent, count);
  int child = first + 1;
  for (int i = 0; i < arity; ++i) {
    const int part = (count - 1) / arity + (i < (count - 1) % arity ? 1 : 0);
    if (part > 0) walk_tree(child, part, arity, first, f);
    child += part;
  }
}

TEST(PlanCounts, TreeSendsOnceToItsParentAndOnceToEachChild) {
  for (int p : {2, 3, 4, 5, 7, 8, 16}) {
    for (int arity : {1, 2, 3, 20}) {
      for (bool reproducible : {false, true}) {
        const std::size_t n = 12;
        std::map<int, int> children;
        std::map<int, int> subtree;
        std::map<int, int> depth;
        walk_tree(0, p, arity, -1, [&](int rank, int parent, int size) {
          ++children[parent];
          subtree[rank] = size;
          depth[rank] = parent < 0 ? 0 : depth[parent] + 1;
        });
        expect_counts(all_reduce_request(Tree{arity}, p, n, reproducible), [&](int rank) -> Expected {
          const auto up = static_cast<std::size_t>(rank == 0 ? 0 : reproducible ? subtree[rank] : 1);
          const int steps = (rank == 0 ? 0 : 2) + (children[rank] > 0 ? 2 : 0);
          return {steps, (up + static_cast<std::size_t>(children[rank])) * n};
        });
        const auto deepest = std::ranges::max_element(depth, {}, [](const auto& entry) { return entry.second; });
        int last_step = 0;
        for (const Plan& plan : plans_of(all_reduce_request(Tree{arity}, p, n, reproducible))) {
          for (const Action& action : plan.actions) {
            if (action.kind == ActionKind::send) last_step = std::max(last_step, action.step);
          }
        }
        EXPECT_EQ(last_step + 1, 2 * deepest->second) << p << " ranks, arity " << arity;
      }
    }
  }
}

TEST(PlanCounts, TreeOfArityKIsAsHighAsTheLogarithm) {
  EXPECT_EQ(count(plans_of(all_reduce_request(Tree{2}, 7, 1, false))[0]).messages_sent, 2);
  for (const auto& [arity, size, height] : std::vector<std::tuple<int, int, int>>{
           {1, 5, 4}, {2, 3, 1}, {2, 7, 2}, {2, 15, 3}, {3, 4, 1}, {3, 13, 2}, {4, 21, 2}, {100, 16, 1}}) {
    int last = -1;
    for (const Plan& plan : plans_of(all_reduce_request(Tree{arity}, size, 1, false))) {
      for (const Action& action : plan.actions) {
        if (action.kind == ActionKind::send) last = std::max(last, action.step);
      }
    }
    EXPECT_EQ(last + 1, 2 * height) << "arity " << arity << ", " << size << " ranks";
  }
}

TEST(PlanCounts, RingSendsEveryChunkButOneInEachHalf) {
  for (int p : {2, 3, 4, 5, 8}) {
    for (std::size_t n : {8u, 9u, 97u, 1000u}) {
      expect_counts(all_reduce_request(Ring{}, p, n, false), [&](int rank) -> Expected {
        const std::size_t own = chunk(n, p, rank).count;
        const std::size_t next = chunk(n, p, (rank + 1) % p).count;
        return {2 * (p - 1), 2 * n - own - next};
      });
    }
  }
}

TEST(PlanCounts, RingTrainsOfContributionsGrowByOneAStep) {
  for (int p : {2, 3, 4, 5, 8}) {
    const std::size_t chunk_length = 10;
    const auto size = static_cast<std::size_t>(p);
    expect_counts(all_reduce_request(Ring{}, p, size * chunk_length, true), [&](int) -> Expected {
      return {2 * (p - 1), size * (size - 1) / 2 * chunk_length + (size - 1) * chunk_length};
    });
  }
}

TEST(PlanCounts, RingOfFewElementsMovesOnlyThose) {
  // The lengths and ranks at which rings are known to go wrong.
  for (const auto& [n, p] :
       std::vector<std::pair<std::size_t, int>>{{5, 4}, {6, 5}, {7, 5}, {9, 8}, {1, 8}, {2, 3}, {0, 4}}) {
    std::size_t sent = 0;
    for (const Plan& plan : plans_of(all_reduce_request(Ring{}, p, n, false))) sent += count(plan).elements_sent;
    EXPECT_EQ(sent, 2 * static_cast<std::size_t>(p - 1) * n) << n << " elements, " << p << " ranks";
  }
}

struct PowerOfTwo {
  explicit PowerOfTwo(int p) : count(static_cast<int>(std::bit_floor(static_cast<unsigned>(p)))), extra(p - count) {}
  int log2() const { return std::countr_zero(static_cast<unsigned>(count)); }
  int count;
  int extra;
};

TEST(PlanCounts, RecursiveDoublingSendsAllInEachOfItsLog2Steps) {
  for (int p : {2, 3, 4, 5, 6, 7, 8, 16}) {
    const PowerOfTwo power(p);
    const std::size_t n = 24;
    expect_counts(all_reduce_request(RecursiveDoubling{}, p, n, false), [&](int rank) -> Expected {
      const bool paired = rank < 2 * power.extra;
      if (paired && rank % 2 == 1) return {2, n};
      const auto rounds = static_cast<std::size_t>(power.log2());
      return {power.log2() + (paired ? 2 : 0), (rounds + (paired ? 1 : 0)) * n};
    });
  }
}

TEST(PlanCounts, RecursiveDoublingOfContributionsSendsEverybodys) {
  for (int p : {2, 4, 8, 16}) {
    const std::size_t n = 24;
    expect_counts(all_reduce_request(RecursiveDoubling{}, p, n, true), [&](int) -> Expected {
      return {PowerOfTwo(p).log2(), static_cast<std::size_t>(p - 1) * n};
    });
  }
}

TEST(PlanCounts, HalvingDoublingSendsAHalfAQuarterAndSoOnBothWays) {
  for (int p : {2, 3, 4, 5, 6, 7, 8, 16}) {
    const PowerOfTwo power(p);
    const auto parts = static_cast<std::size_t>(power.count);
    const std::size_t n = 5 * parts;
    for (bool reproducible : {false, true}) {
      if (reproducible && power.extra > 0) continue;
      expect_counts(all_reduce_request(HalvingDoubling{}, p, n, reproducible), [&](int rank) -> Expected {
        const bool paired = rank < 2 * power.extra;
        if (paired && rank % 2 == 1) return {2, n};
        const std::size_t shares = n / parts * (parts - 1);
        const std::size_t halving = reproducible ? static_cast<std::size_t>(power.log2()) * n / 2 : shares;
        return {2 * power.log2() + (paired ? 2 : 0), halving + shares + (paired ? n : 0)};
      });
    }
  }
}

TEST(PlanCounts, ARankAloneDoesNothing) {
  for (const AllReduceStrategy& algorithm : kAlgorithms) {
    for (bool reproducible : {false, true}) {
      EXPECT_TRUE(plans_of(all_reduce_request(algorithm, 1, 100, reproducible))[0].actions.empty());
    }
  }
}

TEST(PlanCounts, ReduceMovesEachArrayOnceAndTheResultToTheRoot) {
  const std::size_t n = 120;
  for (int p : {2, 3, 4, 5, 8}) {
    for (int root : {0, p - 1}) {
      for (bool reproducible : {false, true}) {
        expect_counts({CallKind::reduce, Centralized{}, {}, p, n, Rank{root}, reproducible}, [&](int rank) -> Expected {
          return {1, rank == root ? 0 : n};
        });
        if (reproducible) continue;
        expect_counts({CallKind::reduce, Ring{}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
          return {p, rank == root ? n - chunk(n, p, rank).count : n};
        });
        for (int arity : {1, 2, 3}) {
          std::map<int, int> children;
          walk_tree(0, p, arity, -1, [&](int, int parent, int) { ++children[parent]; });
          expect_counts({CallKind::reduce, Tree{arity}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
            const int extra = root != 0 && (rank == 0 || rank == root) ? 1 : 0;
            const bool sends_result = root != 0 && rank == 0;
            return {(children[rank] > 0 ? 1 : 0) + (rank > 0 ? 1 : 0) + extra, (rank > 0 || sends_result) ? n : 0};
          });
        }
      }
    }
  }
}

TEST(PlanCounts, BroadcastMovesTheRootsArrayOnceToEverybody) {
  const std::size_t n = 120;
  for (int p : {2, 3, 4, 5, 8}) {
    for (int root : {0, p - 1}) {
      const auto relative = [&](int rank) { return (rank - root + p) % p; };
      expect_counts({CallKind::broadcast, Centralized{}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
        return {1, rank == root ? static_cast<std::size_t>(p - 1) * n : 0};
      });
      expect_counts({CallKind::broadcast, Ring{}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
        const int v = relative(rank);
        const std::size_t passed_on = v == p - 1 ? 0 : n - chunk(n, p, v + 1).count;
        return {p, passed_on + (v == 0 ? n - chunk(n, p, 0).count : 0)};
      });
      for (int arity : {1, 2, 3}) {
        std::map<int, int> children;
        walk_tree(0, p, arity, -1, [&](int, int parent, int) { ++children[parent]; });
        expect_counts({CallKind::broadcast, Tree{arity}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
          const int v = relative(rank);
          return {(v > 0 ? 1 : 0) + (children[v] > 0 ? 1 : 0), static_cast<std::size_t>(children[v]) * n};
        });
      }
    }
  }
}

TEST(PlanCounts, ReduceScatterOfContributionsSendsTrains) {
  for (int p : {2, 3, 5, 8}) {
    const auto size = static_cast<std::size_t>(p);
    expect_counts({CallKind::reduce_scatter, Ring{}, {}, p, 10 * size, {}, true}, [&](int) -> Expected {
      return {p - 1, 10 * size * (size - 1) / 2};
    });
  }
}

TEST(PlanCounts, OtherCallsMoveEachPartOnce) {
  const std::size_t n = 6;
  for (int p : {2, 3, 5, 8}) {
    const auto size = static_cast<std::size_t>(p);
    for (int root : {0, p - 1}) {
      expect_counts({CallKind::gather, Ring{}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
        return {1, rank == root ? 0 : n};
      });
      expect_counts({CallKind::scatter, Ring{}, {}, p, n, Rank{root}, false}, [&](int rank) -> Expected {
        return {1, rank == root ? (size - 1) * n : 0};
      });
    }
    expect_counts({CallKind::all_to_all, Ring{}, {}, p, n, {}, false}, [&](int) -> Expected {
      return {p - 1, (size - 1) * n};
    });
    expect_counts({CallKind::all_gather, Ring{}, {}, p, n, {}, false}, [&](int) -> Expected {
      return {p - 1, (size - 1) * n};
    });
    expect_counts({CallKind::reduce_scatter, Ring{}, {}, p, n * size, {}, false}, [&](int) -> Expected {
      return {p - 1, (size - 1) * n};
    });
  }
}

}  // namespace
}  // namespace tutti
