// Which rows are for training, for validation and for testing, where a source does not say.
//
//   RowSplit rows = split_rows(150, {.test = 0.2, .validation = 0.1}, seed);      // 105, 15 and 30 of them
//
// Every row is in one part. The parts follow from the arguments alone, and each is in ascending order.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

struct RowSplitOptions {
  double test = 0;        // shares of all rows, the two together below 1
  double validation = 0;  // of a share above 0 there is at least one row
  bool shuffle = true;    // otherwise the last rows are for testing, those before them for validation
};

struct RowSplit {
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> validation;
  std::vector<std::int64_t> test;
};

// A UsageError where no row is left to train with.
RowSplit split_rows(std::int64_t rows, const RowSplitOptions& options, std::uint64_t seed);

}  // namespace tutti
