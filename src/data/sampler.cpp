#include <tutti/data/sampler.hpp>

#include <algorithm>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "draws.hpp"

namespace tutti {

std::vector<std::int64_t> shuffled_rows(std::int64_t rows, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  RandomStream draws({seed, detail::number_of(detail::Draws::order), static_cast<std::uint64_t>(epoch)});
  draws.shuffle(std::span(order));
  return order;
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto& [rows, batch_size, seed, shuffle, drop_last] = options;
  if (rows < 1) throw UsageError("there are no rows to take batches of");
  if (batch_size < 1) throw UsageError(fmt::format("expected a batch of at least 1 row, found {}", batch_size));
  steps_per_epoch_ = rows / batch_size + (!drop_last && rows % batch_size != 0 ? 1 : 0);
  if (steps_per_epoch_ == 0) {
    throw UsageError(fmt::format("{} row{} make no batch of {}, and drop_last leaves out smaller ones", rows,
                                 rows == 1 ? "" : "s", batch_size));
  }
}

SampledRows Sampler::rows_of(std::int64_t step) {
  if (step < 0) throw UsageError(fmt::format("expected a step from 0 on, found {}", step));
  const std::int64_t epoch = step / steps_per_epoch_;
  const std::int64_t first = step % steps_per_epoch_ * options_.batch_size;
  const std::int64_t count = std::min(options_.batch_size, options_.rows - first);
  SampledRows batch{
      .numbers = std::vector<std::int64_t>(static_cast<std::size_t>(count)), .step = step, .epoch = epoch};
  if (!options_.shuffle) {
    std::iota(batch.numbers.begin(), batch.numbers.end(), first);
    return batch;
  }
  if (epoch != epoch_) {
    order_ = shuffled_rows(options_.rows, options_.seed, epoch);
    epoch_ = epoch;
  }
  std::copy_n(order_.begin() + first, count, batch.numbers.begin());
  return batch;
}

}  // namespace tutti
