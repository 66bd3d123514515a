// No set of a child is lost or merged twice, neither within a merge nor in two of them: many short runs, in which
// children add sets while somebody starts, stops, clears, looks, and gives the coordinator another model. Each set has
// a one at a place of its own, so that a mean tells which sets it is of. There are as many tickets as sets are merged
// together, and a child that adds a set needs one: they come back once somebody has seen the merge that their sets are
// in, so that no merge is missed.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/distributed_model_parameters_coordinator.hpp>

#include "support/interleavings.hpp"
#include "support/one_array.hpp"

namespace tutti {
namespace {

using testing::doubles;

constexpr std::uint64_t kRuns = testing::kRunsAreSlow ? 50 : 500;
constexpr std::uint64_t kTests = 4;  // of so many runs each

constexpr std::size_t kChildren = 4;
constexpr std::size_t kMostSets = 6;  // of each child
constexpr std::size_t kPlaces = kChildren * kMostSets;

ParameterSet model_of(std::size_t place) {
  std::vector<double> numbers(kPlaces);
  if (place < kPlaces) numbers[place] = 1;
  return doubles(numbers);
}

struct Run {
  explicit Run(RandomStream& draws)
      : children(1 + draws.below(kChildren)),
        options{.merge_every = static_cast<std::int64_t>(1 + draws.below(5)),
                .merger = draws.below(2) == 0 ? Merger(Average{}) : Merger(WeightedAverage{}),
                .capacity = 1 + draws.below(4)},
        coordinator(options),
        adding(children),
        tickets(options.merge_every) {
    coordinator.set_model_parameters(model_of(kPlaces));
  }

  std::string describe() const {
    return std::to_string(children) + " children, merged every " + std::to_string(options.merge_every) + ", capacity " +
           std::to_string(options.capacity);
  }

  void start() {
    try {
      started = coordinator.start();
    } catch (const UsageError&) {  // it runs
    }
  }

  // The sets of a merge that was not seen yet.
  void look() {
    const ModelSnapshot now = coordinator.snapshot();
    if (now.version == version) return;
    if (now.version != version + 1) complaint = "there were more merges than sets";
    version = now.version;
    const std::span<const double> means = (*now.parameters)[0].values<double>();
    std::int64_t merged = 0;
    for (const double mean : means) merged += mean > 0 ? 1 : 0;
    if (merged < 1 || merged > options.merge_every) complaint = "a merge is of none, or of too many";
    for (std::size_t place = 0; place < kPlaces; ++place) {
      if (means[place] == 0) continue;
      if (means[place] != 1 / static_cast<double>(merged)) complaint = "a set counts more than others of a merge";
      ++times[place];
    }
    tickets += merged;
  }

  void stop() {
    coordinator.stop();
    look();
  }

  void clear() {
    const auto dropped = static_cast<std::int64_t>(coordinator.clear());
    cleared += dropped;
    tickets += dropped;
  }

  // Where nobody has a ticket there is nothing to merge.
  void set_model() {
    std::int64_t all = options.merge_every;
    if (!tickets.compare_exchange_strong(all, 0)) return;
    coordinator.set_model_parameters(model_of(kPlaces));
    if (coordinator.version() != ++version) complaint = "something was merged that nobody had added";
    tickets += options.merge_every;
  }

  std::string verdict() {
    start();
    stop();
    if (!complaint.empty()) return complaint;
    if (coordinator.pending() > 0) return "something waits after a stop";
    std::int64_t lost = 0;
    for (std::size_t place = 0; place < kPlaces; ++place) {
      if (times[place] > (was_added[place] ? 1 : 0)) return "a set was merged twice, or was none";
      lost += was_added[place] ? 1 - times[place] : 0;
    }
    return lost == cleared ? "" : "not as many sets were lost as were cleared";
  }

  std::uint64_t children;
  ParametersCoordinatorOptions options;
  DistributedModelParametersCoordinator coordinator;
  std::atomic<std::uint64_t> adding;
  std::atomic<std::int64_t> tickets;
  std::array<bool, kPlaces> was_added = {};
  // Of who controls:
  std::optional<CoordinatorRun> started;
  std::int64_t version = 0;
  std::int64_t cleared = 0;
  std::array<int, kPlaces> times = {};
  std::string complaint;
};

void take_ticket(Run& run) {
  for (std::int64_t left = run.tickets;; left = run.tickets) {
    if (left > 0 && run.tickets.compare_exchange_weak(left, left - 1)) return;
    std::this_thread::yield();
  }
}

void add(Run& run, std::size_t child, RandomStream& draws) {
  if (child >= run.children) return;
  for (std::uint64_t i = 1 + draws.below(kMostSets); i > 0; --i) {
    const std::size_t place = child * kMostSets + i - 1;
    testing::dawdle(draws);
    take_ticket(run);
    run.coordinator.add_model_parameters(model_of(place), {.child = static_cast<std::int64_t>(child), .weight = 3});
    run.was_added[place] = true;
  }
  --run.adding;
}

void control(Run& run, RandomStream& draws) {
  const bool some_are_cleared = draws.below(3) == 0;
  while (run.adding > 0) {
    testing::dawdle(draws);
    switch (draws.below(8)) {
      case 0: run.stop(); break;
      case 1:
        if (some_are_cleared) run.clear();
        break;
      case 2: run.set_model(); break;
      case 3: std::this_thread::yield(); break;
      default: run.start(); break;
    }
    run.look();
    // A ticket that nobody else has to give back: those that wait for a whole merge, and more.
    if (run.tickets == 0 && draws.below(4) == 0) run.stop();
  }
}

void keeps_every_set(std::uint64_t seed) {
  testing::run_interleavings<Run>(seed, {.threads = kChildren, .runs = kRuns}, add, control);
}

class MergeInterleavings : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(MergeInterleavings, KeepEverySetOnce) { keeps_every_set(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Seeds, MergeInterleavings, ::testing::Range<std::uint64_t>(0, kTests));

}  // namespace
}  // namespace tutti
