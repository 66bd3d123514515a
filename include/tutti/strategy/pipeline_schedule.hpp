// In which order the workers of a pipeline do their work: pure functions of the stages, and what follows from them.
//
//   const StageGraph chain{.workers = 2, .stages = {{.worker = 0}, {.worker = 1, .after = {0}}}};
//   const WorkOrder order = schedule_work(chain, 8, strategy::Schedule::one_f_one_b);      // by worker: tasks
//   const WorkForecast forecast = forecast_work(chain, order, costs);
//   forecast.bubble;                                                    // 1/9
//
// Stages may form any graph: branches, skips over many stages, a worker that has several of them. An order is that of a
// run which was simulated, so whoever follows it never waits for something that waits for him.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/strategy/training_strategy.hpp>

namespace tutti {

struct Stage {
  int worker = 0;
  std::vector<std::size_t> after = {};  // stages that give it values: each stands before it in the list
  bool has_backward = true;             // the loss depends on it, and something in it or before it is trained
};

struct StageGraph {
  int workers = 1;
  std::vector<Stage> stages = {};
};

enum class Pass : std::uint8_t { forward, backward };

// The work of one stage for one micro-batch.
struct StageTask {
  std::size_t stage = 0;
  std::int64_t micro_batch = 0;
  Pass pass = Pass::forward;
  friend bool operator==(const StageTask&, const StageTask&) = default;
};

// By worker.
using WorkOrder = std::vector<std::vector<StageTask>>;

// gpipe: a worker computes forward for all micro-batches, then backward.
// one_f_one_b: backward as soon as it can be. A stage has no more micro-batches under way than there are stages from it
// to
//   the end: of a chain with p stages at most p.
// interleaved: for workers that have several stages each, in turn; micro-batches go through them in groups of as many
// as
//   there are workers. A UsageError where the micro-batches are no multiple of these. Where stages do not take turns,
//   so that its order cannot be followed, it is one_f_one_b's.
// With any of them a stage takes its micro-batches in their order, so that sums over them have the same bits.
WorkOrder schedule_work(const StageGraph& graph, std::int64_t micro_batches, strategy::Schedule schedule);

// In seconds, or any other unit.
struct StageCost {
  double forward = 1;
  double backward = 2;
  std::vector<double> transfers = {};  // from each of the stages it is after, and back again; nothing where empty
};

struct WorkForecast {
  double seconds = 0;
  std::vector<double> busy = {};        // by worker
  double bubble = 0;                    // the share of all workers' time in which they wait
  std::vector<std::int64_t> live = {};  // by stage: micro-batches under way at once, at most
};

// When all of it is done where each task begins as soon as what it needs is there and its worker is free. Costs by
// stage.
WorkForecast forecast_work(const StageGraph& graph, const WorkOrder& order, const std::vector<StageCost>& costs);

}  // namespace tutti
