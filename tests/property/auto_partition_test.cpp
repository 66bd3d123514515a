// Cuts that are found by themselves, beside all cuts that there are.
#include <tutti/strategy/auto_partition.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

PartitionProblem random_problem(RandomStream& draws, std::size_t nodes, int workers) {
  PartitionProblem problem{.workers = workers};
  const double traffic = draws.uniform() * draws.uniform();  // mostly cheap, beside the nodes
  for (std::size_t n = 0; n < nodes; ++n) {
    // Some cost nearly nothing, some a lot.
    problem.costs.push_back(draws.below(3) == 0 ? 0.01 * draws.uniform() : 0.2 + draws.uniform() * draws.uniform() * 4);
    PartitionValue value{.of = n, .cost = traffic * draws.uniform()};
    for (std::size_t to = n + 1; to < nodes; ++to) {
      if (to == n + 1 || draws.below(4) == 0) value.to.push_back(to);
    }
    problem.values.push_back(std::move(value));
  }
  return problem;
}

// As the header says it, without any cleverness.
double cost_of(const PartitionProblem& problem, const std::vector<int>& worker_of) {
  std::vector<double> loads(static_cast<std::size_t>(problem.workers));
  for (std::size_t n = 0; n < worker_of.size(); ++n) loads[static_cast<std::size_t>(worker_of[n])] += problem.costs[n];
  for (const PartitionValue& value : problem.values) {
    std::set<int> others;
    for (const std::size_t node : value.to) others.insert(worker_of[node]);
    others.erase(worker_of[value.of]);
    for (const int other : others) {
      loads[static_cast<std::size_t>(other)] += value.cost;
      loads[static_cast<std::size_t>(worker_of[value.of])] += value.cost;
    }
  }
  return *std::ranges::max_element(loads);
}

double least_of_all(const PartitionProblem& problem) {
  const std::size_t nodes = problem.costs.size();
  std::vector<int> worker_of(nodes);
  double least = std::numeric_limits<double>::infinity();
  for (bool has_more = true; has_more;) {
    least = std::min(least, cost_of(problem, worker_of));
    has_more = false;
    for (std::size_t n = 0; n < nodes && !has_more; ++n) {
      has_more = ++worker_of[n] < problem.workers;
      if (!has_more) worker_of[n] = 0;
    }
  }
  return least;
}

TEST(AutoPartition, TellsWhatTheBusiestWorkerHasToDo) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream draws({seed});
    const PartitionProblem problem = random_problem(draws, 1 + draws.below(20), 1 + static_cast<int>(draws.below(5)));
    std::vector<int> worker_of;
    for (std::size_t n = 0; n < problem.costs.size(); ++n)
      worker_of.push_back(static_cast<int>(draws.below(static_cast<std::uint64_t>(problem.workers))));
    EXPECT_NEAR(busiest_worker(problem, worker_of), cost_of(problem, worker_of), 1e-9) << seed;
  }
}

TEST(AutoPartition, FindsTheBestOfAllCutsOfSmallGraphs) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream draws({seed, 1});
    const int workers = 1 + static_cast<int>(draws.below(3));
    const PartitionProblem problem = random_problem(draws, 1 + draws.below(workers == 3 ? 8 : 10), workers);
    EXPECT_NEAR(cost_of(problem, partition_nodes(problem)), least_of_all(problem), 1e-9) << seed;
  }
}

// The search for larger graphs, on those that can be searched as a whole.
TEST(AutoPartition, IsWithinATenthOfTheBestWhereItDoesNotLookAtAllCuts) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream draws({seed, 2});
    const PartitionProblem problem = random_problem(draws, 2 + draws.below(9), 2 + static_cast<int>(draws.below(3)));
    const double found = cost_of(problem, partition_nodes(problem, {.exhaustive_up_to = 0}));
    EXPECT_LE(found, 1.1 * cost_of(problem, partition_nodes(problem)) + 1e-9) << seed;
  }
}

TEST(AutoPartition, CutsLargeGraphs) {
  RandomStream draws({3});
  PartitionProblem problem{.workers = 8};
  for (std::size_t n = 0; n < 2000; ++n) {
    problem.costs.push_back(1 + draws.uniform());
    problem.values.push_back(
        {.of = n, .to = n + 1 < 2000 ? std::vector<std::size_t>{n + 1} : std::vector<std::size_t>{}, .cost = 0.5});
  }
  const std::vector<int> worker_of = partition_nodes(problem);
  double all = 0;
  for (const double cost : problem.costs) all += cost;
  EXPECT_LE(cost_of(problem, worker_of), 1.02 * all / 8);
  EXPECT_EQ(std::set<int>(worker_of.begin(), worker_of.end()).size(), 8u);
}

TEST(AutoPartition, IsAllOfOneWorkersWhereThereIsOne) {
  EXPECT_EQ(partition_nodes({.workers = 1, .costs = {1, 2, 3}}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(partition_nodes({.workers = 3}), std::vector<int>{});
  EXPECT_EQ(testing::usage_error([] { (void)partition_nodes({.workers = 0, .costs = {1}}); }),
            "expected at least 1 worker, found 0");
}

// Where values go to the next node alone, it is the best of all such cuts.
TEST(AutoPartition, CutsChainsInTheirOrderAsWellAsCanBe) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream draws({seed, 9});
    const std::size_t nodes = 1 + draws.below(9);
    PartitionProblem problem = random_problem(draws, nodes, 1 + static_cast<int>(draws.below(4)));
    for (PartitionValue& value : problem.values) {
      value.to.clear();
      if (value.of + 1 < nodes) value.to.push_back(value.of + 1);
    }
    const std::vector<int> found = cut_nodes_in_order(problem);
    EXPECT_TRUE(std::ranges::is_sorted(found));
    EXPECT_LT(found.back(), problem.workers);
    double least = std::numeric_limits<double>::infinity();
    for (std::uint64_t cuts = 0; cuts < 1u << (nodes - 1); ++cuts) {  // a bit for each place to cut at
      std::vector<int> worker_of(nodes);
      for (std::size_t n = 1; n < nodes; ++n) worker_of[n] = worker_of[n - 1] + static_cast<int>(cuts >> (n - 1) & 1);
      if (worker_of.back() < problem.workers) least = std::min(least, cost_of(problem, worker_of));
    }
    EXPECT_NEAR(cost_of(problem, found), least, 1e-9) << "seed " << seed;
  }
}

// Any graph: in order, never worse than all of it on one worker by more than what is moved.
TEST(AutoPartition, CutsAnyGraphInOrder) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream draws({seed, 10});
    const PartitionProblem problem = random_problem(draws, 1 + draws.below(60), 1 + static_cast<int>(draws.below(5)));
    const std::vector<int> found = cut_nodes_in_order(problem);
    ASSERT_EQ(found.size(), problem.costs.size());
    EXPECT_TRUE(std::ranges::is_sorted(found));
    EXPECT_LE(cost_of(problem, found), cost_of(problem, std::vector<int>(found.size())) + 1e-9);
  }
}

}  // namespace
}  // namespace tutti
