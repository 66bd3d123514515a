// What a run will take, before it runs: memory, and what travels between its workers in a step.
//
//   Footprint footprint = footprint_of(run);        // what can be counted
//   double bytes = measure_memory(run);             // all of it, by trying
#pragma once

#include <optional>

#include <tutti/train/run.hpp>

namespace tutti {

// In bytes, of all replicas of this process together.
struct Footprint {
  std::int64_t replicas = 1;
  double parameters = 0;  // and buffers; those that are private to each replica as often as there are replicas
  double optimizer_state = 0;
  double gradients = 0;
  double total() const { return parameters + optimizer_state + gradients; }

  // What the nodes compute for a batch, all of it: a step keeps some of this, and takes more for a while.
  double values = 0;

  // Between replicas, workers or clients, in a step or round: sent, or read from each other's memory and written there.
  // Nothing where the strategy does not say.
  std::optional<double> moved = {};
};

Footprint footprint_of(const Run& run);

// Opens the data, carries out a few steps of the run, evaluates some rows, gathers a checkpoint, and tells how much
// memory this process had at most. For a process of its own, which does nothing else: what libtorch, its libraries and
// malloc keep for themselves cannot be counted.
double measure_memory(const Run& run);

}  // namespace tutti
