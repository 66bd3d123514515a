// The parts of `./bench coordinator`, a file each. A part measures one thing, prints a table and whether its targets
// are reached, or with --json a line for each figure, and returns what failed.
#pragma once

#include <string>
#include <vector>

#include <tutti/base/bytes.hpp>

#include "turns.hpp"

namespace tutti::bench {

struct CoordinatorRequest {
  RunOptions run{.passes = 3, .seconds = 0.5};
  // Of the part `applied`.
  std::vector<int> producers = {1, 2, 4};
  std::vector<Bytes> sizes;
};

// Gradients that a coordinator applies in a second, beside a loop that applies them (coordinator_applied.cpp).
std::vector<std::string> measure_applied(const CoordinatorRequest& request);

// Rows of a sparse logistic regression that threads learn in a second, with locks and without
// (coordinator_hogwild.cpp).
std::vector<std::string> measure_hogwild(const CoordinatorRequest& request);

// Gradients in a second of a parameter server that waits for everybody and of one that does not, where one of two
// replicas is slow; and the rows to the same loss (coordinator_training.cpp).
std::vector<std::string> measure_slow(const CoordinatorRequest& request);

// Accuracy and bytes of replicas that meet in each step, and of those that take steps alone (coordinator_training.cpp).
std::vector<std::string> measure_alone(const CoordinatorRequest& request);

}  // namespace tutti::bench
