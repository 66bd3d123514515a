#include "cli/ranks.hpp"

#include <exception>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>
#include <tutti/base/error.hpp>
#include <tutti/collective.hpp>
#include <tutti/transport/folder.hpp>
#ifdef TUTTI_WITH_TORCH
#include <tutti/c10d/join.hpp>
#endif

#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

#ifdef TUTTI_WITH_TORCH
constexpr bool kCanJoin = true;

std::unique_ptr<Transport> join(const ProcessPlace& place, const RanksOptions& options) {
  return c10d::join({.place = place, .shared_memory = options.shared_memory});
}
#else
constexpr bool kCanJoin = false;

std::unique_ptr<Transport> join(const ProcessPlace&, const RanksOptions&) { return nullptr; }
#endif

std::unique_ptr<Transport> meet(const ProcessPlace& place, const std::optional<MeetingFolder>& folder) {
  if (!folder) return join(place, {});
  return join_folder({.folder = folder->path,
                      .is_own_folder = folder->is_own,
                      .rank = place.rank,
                      .size = place.size,
                      .heartbeat = place.heartbeat.value_or(kDefaultHeartbeat)});
}

}  // namespace

std::optional<ProcessPlace> own_place() {
  std::optional<ProcessPlace> place = discover_place();
  if (place && !kCanJoin)
    throw UsageError(
        fmt::format("{} started this as {} of {}, but this tutti was built without c10d (TUTTI_WITH_TORCH), "
                    "so its ranks are threads only",
                    place->launcher, to_string(place->rank), place->size));
  return place;
}

void run_on_ranks(const std::vector<int>& counts, const std::function<void(Communicator&)>& f,
                  const RanksOptions& options) {
  if (const std::optional<ProcessPlace> place = own_place()) {
    TUTTI_ASSERT((counts == std::vector<int>{place->size}));
    return run_rank(join(*place, options), f);
  }
  for (const int ranks : counts) run_ranks(ranks, f, {.shared_memory = options.shared_memory});
}

void run_with_processes(const ProcessWork& work) {
  const std::optional<ProcessPlace> place = own_place();
  if (!place || place->size == 1) {
    work.prepare();
    return work.work(nullptr);
  }
  std::exception_ptr problem;
  try {
    work.prepare();
  } catch (...) {
    problem = std::current_exception();
  }
  std::unique_ptr<Transport> transport;
  try {
    transport = meet(*place, work.meets_in());
  } catch (...) {
    if (problem) std::rethrow_exception(problem);
    throw;
  }
  run_rank(std::move(transport), [&](Communicator& world) {
    std::int64_t first = problem ? world.rank().value : world.size();
    all_reduce(world, std::span(&first, 1), {.op = ReduceOp::min});
    if (first == world.size()) return tell_misuse_once([&] { work.work(&world); });
    if (first == world.rank().value) std::rethrow_exception(problem);
    throw Ended{0};  // the exit code of the job is that of the process that tells
  });
}

void tell_misuse_once(const std::function<void()>& work) {
  try {
    work();
  } catch (const UsageError&) {
    const std::optional<ProcessPlace> place = discover_place();
    if (place && place->rank != Rank{0}) throw Ended{2};
    throw;
  }
}

std::string_view engine_of(Communicator& world) {
  if (!own_place()) return "tutti";
  return world.shape().shared_memory ? "tutti-shm" : "tutti-c10d";
}

std::string_view describe_ranks(Communicator& world) {
  const bool shared_memory = world.shape().shared_memory;
  if (own_place()) return shared_memory ? "processes that share memory" : "processes over sockets";
  return shared_memory ? "threads" : "threads, messages only";
}

int ranks_of_host(Communicator& world) {
  int ranks = 0;
  for (const Rank peer : all_ranks(world.size()))
    if (peer == world.rank() || world.transport().locality(peer) != Locality::remote) ++ranks;
  return ranks;
}

std::uint64_t agree(Communicator& world, std::uint64_t of_rank_0) {
  auto value = static_cast<std::int64_t>(of_rank_0);
  broadcast(world, std::span(&value, 1));
  return static_cast<std::uint64_t>(value);
}

}  // namespace tutti::cli
