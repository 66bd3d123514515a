// Schedules over chains, whose bubbles are known, and over random graphs of stages, in which nobody may wait for
// himself.
#include <tutti/strategy/pipeline_schedule.hpp>

#include <algorithm>
#include <set>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using strategy::Schedule;

constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved};

// One stage after the other; worker 0 comes again after the last.
StageGraph chain(int workers, int stages_each = 1) {
  StageGraph graph{.workers = workers};
  for (int s = 0; s < workers * stages_each; ++s) {
    graph.stages.push_back({.worker = s % workers});
    if (s > 0) graph.stages.back().after = {static_cast<std::size_t>(s - 1)};
  }
  return graph;
}

std::vector<StageCost> equal_costs(const StageGraph& graph, double forward, double backward) {
  return std::vector<StageCost>(graph.stages.size(), StageCost{.forward = forward, .backward = backward});
}

StageGraph random_graph(RandomStream& draws) {
  StageGraph graph{.workers = 1 + static_cast<int>(draws.below(5))};
  const std::size_t stages = 1 + draws.below(12);
  for (std::size_t s = 0; s < stages; ++s) {
    Stage stage{.worker = static_cast<int>(draws.below(static_cast<std::uint64_t>(graph.workers)))};
    for (std::size_t before = 0; before < s; ++before) {
      if (draws.below(3) == 0) stage.after.push_back(before);
    }
    graph.stages.push_back(stage);
  }
  // The loss is of one of them, and depends on all that are before it.
  for (Stage& stage : graph.stages) stage.has_backward = false;
  graph.stages[draws.below(stages)].has_backward = true;
  for (std::size_t s = stages; s-- > 0;) {
    if (!graph.stages[s].has_backward) continue;
    for (const std::size_t before : graph.stages[s].after) graph.stages[before].has_backward = true;
  }
  // Where nothing is trained in a stage or before it, it has no backward pass either.
  std::vector<bool> is_trained(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    is_trained[s] = draws.below(3) != 0;
    for (const std::size_t before : graph.stages[s].after) is_trained[s] = is_trained[s] || is_trained[before];
    graph.stages[s].has_backward = graph.stages[s].has_backward && is_trained[s];
  }
  return graph;
}

TEST(PipelineSchedule, HasTheBubblesOfChainsThatAreKnown) {
  for (int workers = 2; workers <= 8; ++workers) {
    for (std::int64_t m = 1; m <= 32; ++m) {
      for (const auto& [forward, backward] : {std::pair(1.0, 2.0), std::pair(1.0, 1.0), std::pair(3.0, 4.0)}) {
        const double p = workers;
        const double known = (p - 1) / (static_cast<double>(m) + p - 1);
        const StageGraph graph = chain(workers);
        for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
          const WorkForecast forecast =
              forecast_work(graph, schedule_work(graph, m, schedule), equal_costs(graph, forward, backward));
          EXPECT_NEAR(forecast.bubble, known, 1e-12) << workers << " workers, " << m << " micro-batches";
          EXPECT_NEAR(forecast.seconds, (static_cast<double>(m) + p - 1) * (forward + backward), 1e-9);
        }
        for (int v = 1; v <= 4 && m % workers == 0; ++v) {
          const StageGraph turns = chain(workers, v);
          const WorkForecast forecast = forecast_work(turns, schedule_work(turns, m, Schedule::interleaved),
                                                      equal_costs(turns, forward, backward));
          EXPECT_NEAR(forecast.bubble, (p - 1) / (v * static_cast<double>(m) + p - 1), 1e-12)
              << workers << " workers with " << v << " stages each, " << m << " micro-batches";
        }
      }
    }
  }
}

TEST(PipelineSchedule, HasAsManyMicroBatchesUnderWayAsIsKnown) {
  for (int workers = 1; workers <= 8; ++workers) {
    const StageGraph graph = chain(workers);
    for (std::int64_t m = 1; m <= 32; ++m) {
      const WorkForecast gpipe =
          forecast_work(graph, schedule_work(graph, m, Schedule::gpipe), equal_costs(graph, 1, 2));
      const WorkForecast alternating =
          forecast_work(graph, schedule_work(graph, m, Schedule::one_f_one_b), equal_costs(graph, 1, 2));
      for (int s = 0; s < workers; ++s) {
        EXPECT_EQ(gpipe.live[static_cast<std::size_t>(s)], m);
        EXPECT_EQ(alternating.live[static_cast<std::size_t>(s)], std::min<std::int64_t>(m, workers - s));
      }
    }
  }
}

// Everything once, on the worker that it belongs to, and in an order that can be followed.
TEST(PipelineSchedule, CanBeFollowedOverAnyGraphOfStages) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream draws({seed});
    const StageGraph graph = random_graph(draws);
    for (const Schedule schedule : kSchedules) {
      std::int64_t m = 1 + static_cast<std::int64_t>(draws.below(9));
      if (schedule == Schedule::interleaved) m *= graph.workers;
      const WorkOrder order = schedule_work(graph, m, schedule);
      std::set<std::tuple<std::size_t, std::int64_t, Pass>> all;
      for (std::size_t w = 0; w < order.size(); ++w) {
        std::vector<std::int64_t> next(2 * graph.stages.size());
        for (const StageTask& task : order[w]) {
          ASSERT_EQ(graph.stages[task.stage].worker, static_cast<int>(w)) << seed;
          ASSERT_TRUE(all.emplace(task.stage, task.micro_batch, task.pass).second) << seed;
          // Its micro-batches in their order.
          ASSERT_EQ(task.micro_batch, next[2 * task.stage + static_cast<std::size_t>(task.pass)]++) << seed;
        }
      }
      std::size_t expected = 0;
      for (const Stage& stage : graph.stages) expected += static_cast<std::size_t>(m) * (stage.has_backward ? 2 : 1);
      EXPECT_EQ(all.size(), expected) << seed;
      // Whatever the tasks cost.
      std::vector<StageCost> costs;
      for (const Stage& stage : graph.stages) {
        costs.push_back({.forward = draws.uniform() + 0.1, .backward = 3 * draws.uniform()});
        for (std::size_t i = 0; i < stage.after.size(); ++i) costs.back().transfers.push_back(draws.uniform());
      }
      const WorkForecast forecast = forecast_work(graph, order, costs);
      EXPECT_GE(forecast.bubble, -1e-12) << seed;
      EXPECT_LT(forecast.bubble, 1) << seed;
    }
  }
}

TEST(PipelineSchedule, KeepsMicroBatchesUnderWayWithinTheStagesToTheEnd) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream draws({seed, 1});
    const StageGraph graph = random_graph(draws);
    const WorkForecast forecast =
        forecast_work(graph, schedule_work(graph, 16, Schedule::one_f_one_b), equal_costs(graph, 1, 2));
    std::vector<std::int64_t> to_the_end(graph.stages.size(), 1);
    for (std::size_t s = graph.stages.size(); s-- > 0;) {
      for (const std::size_t before : graph.stages[s].after)
        to_the_end[before] = std::max(to_the_end[before], to_the_end[s] + 1);
      EXPECT_LE(forecast.live[s], to_the_end[s]) << seed;
    }
  }
}

TEST(PipelineSchedule, RefusesInterleavedUnlessMicroBatchesAreAMultipleOfWorkers) {
  for (const std::int64_t m : {1, 2, 4, 5, 7}) {
    EXPECT_EQ(testing::usage_error([&] { (void)schedule_work(chain(3, 2), m, Schedule::interleaved); }),
              "the schedule interleaved: expected a multiple of 3 micro-batches, as there are 3 workers, found " +
                  std::to_string(m));
  }
}

TEST(PipelineSchedule, SaysWhereAnOrderWaitsForItself) {
  const StageGraph graph = chain(2);
  const WorkOrder order{{{0, 0, Pass::forward}, {0, 0, Pass::backward}, {0, 1, Pass::forward}, {0, 1, Pass::backward}},
                        {{1, 0, Pass::forward}, {1, 1, Pass::forward}, {1, 0, Pass::backward}, {1, 1, Pass::backward}}};
  EXPECT_EQ(testing::usage_error([&] { (void)forecast_work(graph, order, equal_costs(graph, 1, 1)); }),
            "the order of work waits for itself");
}

}  // namespace
}  // namespace tutti
