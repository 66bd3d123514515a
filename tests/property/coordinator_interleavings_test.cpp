// No update is lost or applied twice, whatever threads do at whatever time: many short runs, in which some threads add
// gradients, start, stop, clear and look, with random numbers of everything. Each update is another power of four, so
// that the model tells how often each of them was applied.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/distributed_gradients_coordinator.hpp>

#include "support/interleavings.hpp"

namespace tutti {
namespace {

constexpr std::uint64_t kRuns = testing::kRunsAreSlow ? 500 : 10'000;
constexpr std::uint64_t kTests = 10;  // of so many runs each

constexpr std::size_t kProducers = 4;
constexpr std::size_t kMostUpdates = 6;  // of each producer: 24 powers of four, all exact in a double
constexpr double kThrows = 1;

ParameterSet model_of(double sum, double count, double throws) {
  ParameterSet set;
  const std::array<double, 3> values = {sum, count, throws};
  set.add("sum", {1}, std::span(values).subspan(0, 1));
  set.add("count", {1}, std::span(values).subspan(1, 1));
  set.add("throws", {1}, std::span(values).subspan(2, 1));
  return set;
}

double number(const ParameterSet& set, std::size_t array) { return set[array].values<double>()[0]; }

class Adding : public UpdateRule {
 public:
  explicit Adding(bool in_place) : in_place_(in_place) {}

  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep&) override {
    if (number(gradients, 2) == kThrows) throw std::runtime_error("as it was told to");
    for (std::size_t i = 0; i < 2; ++i) parameters[i].values<double>()[0] += number(gradients, i);
  }
  bool never_fails() const override { return in_place_; }

 private:
  bool in_place_;
};

// One run: who takes part, and what became of each update.
struct Run {
  explicit Run(RandomStream& draws)
      : producers(1 + draws.below(kProducers)),
        in_place(draws.below(2) == 0),
        throws_in(draws.below(4) == 0 ? 6 : 0),
        options{.capacity = 1 + draws.below(4), .when_full = static_cast<WhenFull>(draws.below(3))},
        coordinator(std::make_unique<Adding>(in_place), options),
        producing(producers) {
    if (options.when_full == WhenFull::merge) throws_in = 0;  // what is merged is lost together: nobody could tell what
    coordinator.set_model_parameters(model_of(0, 0, 0));
  }

  std::string verdict();
  std::string describe() const {
    return std::to_string(producers) + " producers, capacity " + std::to_string(options.capacity) + ", when_full " +
           std::to_string(static_cast<int>(options.when_full));
  }

  std::uint64_t producers;
  bool in_place;
  std::uint64_t throws_in;  // one of so many; none, where 0
  GradientsCoordinatorOptions options;
  DistributedGradientsCoordinator coordinator;
  std::atomic<std::uint64_t> producing;
  std::atomic<std::int64_t> cleared = 0;
  // By update: whether it was taken, and whether it throws.
  std::array<std::array<bool, kMostUpdates>, kProducers> was_taken = {};
  std::array<std::array<bool, kMostUpdates>, kProducers> throws = {};
  std::array<std::string, kProducers + 1> complaints = {};
};

std::optional<CoordinatorRun> start(Run& run) {
  try {
    return run.coordinator.start();
  } catch (const UsageError&) {  // somebody else did
    return std::nullopt;
  }
}

// The run may have ended with what the rule threw. Nobody looks at that here: several threads share it, and the thread
// sanitizer does not see how the standard library counts them.
void stop(Run& run) {
  try {
    run.coordinator.stop();
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error&) {
  }
}

void look(Run& run, std::string& complaint) {
  const ModelSnapshot now = run.coordinator.snapshot();
  double applied = 0;
  for (auto rest = static_cast<std::uint64_t>(number(*now.parameters, 0)); rest > 0; rest /= 4)
    applied += static_cast<double>(rest % 4);
  if (applied != number(*now.parameters, 1)) complaint = "a snapshot is not of one version";
  if (run.options.when_full != WhenFull::merge && static_cast<double>(now.version) != applied)
    complaint = "a snapshot has the number of another version";
}

void produce(Run& run, std::size_t producer, RandomStream& draws) {
  const std::size_t updates = 1 + draws.below(kMostUpdates);
  for (std::size_t i = 0; i < updates; ++i) {
    const bool throws = run.throws_in > 0 && draws.below(run.throws_in) == 0;
    run.throws[producer][i] = throws;
    const double power = static_cast<double>(std::uint64_t{1} << (2 * (producer * kMostUpdates + i)));
    const auto gradients = std::make_shared<const ParameterSet>(model_of(power, 1, throws ? kThrows : 0));
    testing::dawdle(draws);
    for (int attempt = 0; !run.was_taken[producer][i]; ++attempt) {
      try {
        run.coordinator.add_gradients(gradients);
        run.was_taken[producer][i] = true;
      } catch (const UsageError&) {
        throw;
      } catch (const Error&) {  // full, or the run has failed
        if (attempt > 2) break;
        std::this_thread::yield();
      }
    }
    switch (draws.below(12)) {
      case 0: stop(run); break;
      case 1: run.cleared += static_cast<std::int64_t>(run.coordinator.clear_gradients()); break;
      case 2: start(run); break;
      case 3: look(run, run.complaints[producer]); break;
      default: break;
    }
  }
  --run.producing;
}

void control(Run& run, RandomStream& draws) {
  for (std::uint64_t actions = draws.below(4); actions > 0; --actions) {
    testing::dawdle(draws);
    switch (draws.below(6)) {
      case 0: stop(run); break;
      case 1: run.cleared += static_cast<std::int64_t>(run.coordinator.clear_gradients()); break;
      case 2: look(run, run.complaints[kProducers]); break;
      default: start(run); break;
    }
  }
  // Whoever waits for room gets it, whoever stops it.
  for (std::optional<CoordinatorRun> started; run.producing > 0; std::this_thread::yield()) {
    if (!started || started->has_ended()) started = start(run);
  }
}

// What is wrong with it, in the end.
std::string Run::verdict() {
  Run& run = *this;
  for (int starts = 0; run.coordinator.pending() > 0; ++starts) {
    if (starts > 100) return "what is pending is never applied";
    start(run);
    stop(run);
  }
  stop(run);
  if (!run.complaints[kProducers].empty()) return run.complaints[kProducers];
  std::int64_t taken = 0;
  std::int64_t applied = 0;
  auto rest = static_cast<std::uint64_t>(number(*run.coordinator.snapshot().parameters, 0));
  for (std::size_t producer = 0; producer < kProducers; ++producer) {
    if (!run.complaints[producer].empty()) return run.complaints[producer];
    for (std::size_t i = 0; i < kMostUpdates; ++i, rest /= 4) {
      const std::uint64_t times = rest % 4;
      const bool counts = run.was_taken[producer][i] && !run.throws[producer][i];
      if (times > 1) return "an update was applied twice";
      if (times == 1 && !counts) return "an update was applied that was not taken, or threw";
      if (times == 0 && counts && run.cleared == 0) return "an update was lost";
      taken += counts ? 1 : 0;
      applied += static_cast<std::int64_t>(times);
    }
  }
  // Of those that throw, too, some were cleared.
  if (run.throws_in == 0 && taken != applied + run.cleared) return "cleared and applied are not all that was taken";
  if (taken > applied + run.cleared) return "an update was lost beside those that were cleared";
  if (number(*run.coordinator.snapshot().parameters, 1) != static_cast<double>(applied)) return "the count is wrong";
  return "";
}

void keeps_every_update(std::uint64_t seed) {
  testing::run_interleavings<Run>(
      seed, {.threads = kProducers, .runs = kRuns},
      [](Run& run, std::size_t producer, RandomStream& draws) {
        if (producer < run.producers) produce(run, producer, draws);
      },
      control);
}

class CoordinatorInterleavings : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(CoordinatorInterleavings, KeepEveryUpdateOnce) { keeps_every_update(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Seeds, CoordinatorInterleavings, ::testing::Range<std::uint64_t>(0, kTests));

}  // namespace
}  // namespace tutti
