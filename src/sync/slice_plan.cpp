#include <tutti/sync/slice_plan.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {

SlicePlan::SlicePlan(std::span<const std::size_t> lengths, int workers) {
  if (workers < 1) throw UsageError(fmt::format("a plan is for at least 1 worker, found {}", workers));
  std::vector<std::size_t> firsts;  // of each piece, its first element, counted over all arrays
  std::size_t total = 0;
  for (std::size_t array = 0; array < lengths.size(); ++array) {
    for (std::size_t done = 0; done < lengths[array]; done += kLongest) {
      pieces_.push_back({array, {done, std::min(kLongest, lengths[array] - done)}, pieces_.size()});
      firsts.push_back(total + done);
    }
    total += lengths[array];
  }
  for (int worker = 0; worker < workers; ++worker) {
    const std::size_t from = chunk(total, workers, worker).first;
    begins_.push_back(static_cast<std::size_t>(std::ranges::lower_bound(firsts, from) - firsts.begin()));
  }
  begins_.push_back(pieces_.size());
}

std::span<const SlicePiece> SlicePlan::share_of(int worker) const {
  const auto w = static_cast<std::size_t>(worker);
  return std::span(pieces_).subspan(begins_[w], begins_[w + 1] - begins_[w]);
}

}  // namespace tutti
