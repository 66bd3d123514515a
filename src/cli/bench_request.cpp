#include "cli/bench_request.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/collective.hpp>

#include "cli/arguments.hpp"
#include "cli/memory.hpp"
#include "cli/ranks.hpp"

namespace tutti::cli {
namespace {

// `share` is what each of the ranks may take.
void refuse_beyond(std::uint64_t share, const BenchRequest& request, int ranks, std::uint64_t arrays) {
  const Bytes largest = *std::ranges::max_element(request.sizes);
  if (largest.value <= share / arrays) return;
  const auto count = static_cast<std::uint64_t>(ranks);
  throw UsageError(fmt::format("--bytes: {} on {} ranks would need {} times as much memory, and {} MiB are left",
                               to_string(largest), ranks, count * arrays, (share >> 20) * count));
}

}  // namespace

void BenchRequest::run(const std::function<void(Communicator&)>& f) const {
  run_on_ranks(ranks, f, {.shared_memory = !messages_only});
}

BenchOptions::BenchOptions(CommandLine& line)
    : ranks_option_(
          line.option("--ranks", ranks_, "numbers of ranks, with commas between; of processes, all there are")) {
  line.option("--bytes", sizes_, "sizes of each rank's array, with commas between");
  line.flag("--messages-only", request_.messages_only, "ranks exchange messages, and share no memory");
  line.effort(request_.effort);
  line.flag("--json", request_.json, "print one JSON object a line");
}

BenchRequest BenchOptions::read() const {
  BenchRequest request = request_;
  request.ranks = parse_ranks("--ranks", ranks_);
  request.sizes = parse_sizes("--bytes", sizes_);
  if (const std::optional<ProcessPlace> place = own_place()) {
    const std::vector<int> there{place->size};
    if (ranks_option_.was_given() && request.ranks != there)
      throw UsageError(fmt::format("--ranks: found '{}', but {} started {} {}, which are the ranks", ranks_,
                                   place->launcher, place->size, place->size == 1 ? "process" : "processes"));
    request.ranks = there;
  }
  return request;
}

void refuse_what_memory_cannot_hold(const BenchRequest& request,
                                    const std::function<std::uint64_t(int ranks)>& arrays) {
  if (own_place()) return;
  const int most = *std::ranges::max_element(request.ranks);
  refuse_beyond(available_memory() / static_cast<std::uint64_t>(most), request, most, arrays(most));
}

void refuse_what_memory_cannot_hold(const BenchRequest& request, const std::function<std::uint64_t(int ranks)>& arrays,
                                    Communicator& world) {
  if (!own_place()) return;
  const std::uint64_t here = available_memory() / static_cast<std::uint64_t>(ranks_of_host(world));
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  auto share = static_cast<std::int64_t>(std::min(here, kMost));
  all_reduce(world, std::span(&share, 1), {.op = ReduceOp::min});
  refuse_beyond(static_cast<std::uint64_t>(share), request, world.size(), arrays(world.size()));
}

}  // namespace tutti::cli
