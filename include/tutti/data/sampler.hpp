// Which rows a step takes. Epochs follow one another; each goes over every row once, in an order of its own that
// follows from the seed and the number of the epoch.
//
//   Sampler sampler({.rows = 60000, .batch_size = 128, .seed = 7});
//   sampler.steps_per_epoch();                                        // 469
//   SampledRows batch = sampler.rows_of(1000);                        // of epoch 2
//
// Steps count from 0 over all epochs, and any can be asked for: a run that goes on where another ended gets the rows
// that come next.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

struct SamplerOptions {
  std::int64_t rows = 0;
  std::int64_t batch_size = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;  // leave out the rows at the end of an epoch that make no whole batch; otherwise they are one
};

struct SampledRows {
  std::vector<std::int64_t> numbers;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
};

// The order of the rows 0 to rows-1 in an epoch: each as likely as the others.
std::vector<std::int64_t> shuffled_rows(std::int64_t rows, std::uint64_t seed, std::int64_t epoch);

// One thread at a time: it keeps the order of the epoch that was last asked for.
class Sampler {
 public:
  // A UsageError where there are no rows, or no batch in an epoch.
  explicit Sampler(const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  SampledRows rows_of(std::int64_t step);

 private:
  SamplerOptions options_;
  std::int64_t steps_per_epoch_;
  std::int64_t epoch_ = -1;  // of the order
  std::vector<std::int64_t> order_;
};

}  // namespace tutti
