// What a run will take, before it runs: memory, and what travels between its workers in a step.
//
//   Footprint footprint = footprint_of(run);
//   fmt::print("{}", footprint.total());
#pragma once

#include <cstdint>

#include <tutti/base/bytes.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

struct Footprint {
  // In bytes, of all replicas of this process together.
  double parameters = 0;
  double optimizer_state = 0;
  double gradients = 0;
  double activations = 0;  // what a step keeps from its forward to its backward pass, at most at a time
  double total() const { return parameters + optimizer_state + gradients + activations; }

  // Between replicas, in a step: sent, or read from each other's memory.
  double moved = 0;
};

Footprint footprint_of(const Run& run);

}  // namespace tutti
