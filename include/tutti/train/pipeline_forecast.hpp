// What a ModelParallel run comes to, before it runs: its stages, what travels between them, and, from what the nodes
// cost, how long a step takes and how much of it the workers wait.
//
//   const PipelineForecast forecast = forecast_pipeline(run, measure_node_costs(run, *data.train));
//   forecast.seconds;                                // a step
//   forecast.bubble;                                 // the share of the workers' time in which they wait
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/graph/cut.hpp>
#include <tutti/train/node_costs.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

// What goes from one worker to another in a step.
struct PipelineTraffic {
  int from = 0;
  int to = 0;
  std::vector<std::size_t> nodes = {};  // whose values go, or have gradients that do
  double values = 0;                    // in bytes
  double gradients = 0;                 // of values that came the other way
  double parameters = 0;                // gradients and new values of those that several workers have

  double bytes() const { return values + gradients + parameters; }
};

// In the order of the workers.
std::vector<PipelineTraffic> traffic_of(const Run& run);

// What a worker keeps for backward passes that are still to come, at most.
struct LiveActivations {
  std::int64_t micro_batches = 0;
  double bytes = 0;  // inputs of its stages, and what their nodes compute
};

struct PipelineForecast {
  Cut cut = {};
  std::int64_t micro_batches = 1;
  std::vector<LiveActivations> live = {};  // by worker
  // Where it is known what the nodes cost:
  std::vector<StageCost> stages = {};
  std::vector<double> busy = {};  // by worker: seconds of a step
  double seconds = 0;             // of a step, updates included
  double bubble = 0;
};

PipelineForecast forecast_pipeline(const Run& run, const std::optional<NodeCosts>& costs = {});

}  // namespace tutti
