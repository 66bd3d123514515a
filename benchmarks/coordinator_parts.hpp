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

}  // namespace tutti::bench
