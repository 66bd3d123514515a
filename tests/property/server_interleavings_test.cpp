// No push is lost or applied twice, whatever workers do at whatever time: many short runs, in which workers push, pull,
// leave and join, while somebody turns the model around, changes its rate, looks, and saves. Each push is another power
// of four, so that the model tells how often each of them was applied.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/parameter_server.hpp>

#include "support/interleavings.hpp"

namespace tutti {
namespace {

using strategy::Consistency;

constexpr std::uint64_t kRuns = testing::kRunsAreSlow ? 100 : 1000;
constexpr std::uint64_t kTests = 4;  // of so many runs each

constexpr std::size_t kWorkers = 4;
constexpr std::size_t kMostPushes = 6;  // of each worker: 24 powers of four, all exact in a double
constexpr double kThrows = 1;
constexpr std::array<double, 3> kFactors = {1, 0.5, 4};

// A sum, how many were added, whether to throw, and how many steps were none that anybody had asked for.
ParameterSet model_of(double sum, double count, double throws) {
  ParameterSet set;
  const std::array<double, 4> values = {sum, count, throws, 0};
  set.add("numbers", {4}, std::span(values));
  return set;
}

std::span<const double> numbers_of(const ParameterSet& set) { return set[0].values<double>(); }

class Adding : public UpdateRule {
 public:
  explicit Adding(bool in_place) : in_place_(in_place) {}

  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    if (numbers_of(gradients)[2] == kThrows) throw std::runtime_error("as it was told to");
    const std::span<double> its = parameters[0].values<double>();
    for (std::size_t i = 0; i < 2; ++i) its[i] += numbers_of(gradients)[i];
    const bool is_known =
        std::abs(step.gradient_scale) == 1 && std::ranges::find(kFactors, step.rate_factor) != kFactors.end();
    if (!is_known) ++its[3];
  }
  bool never_fails() const override { return in_place_; }

 private:
  bool in_place_;
};

struct Run {
  explicit Run(RandomStream& draws)
      : workers(1 + draws.below(kWorkers)),
        throws_in(draws.below(4) == 0 ? 6 : 0),
        some_leave(draws.below(3) == 0),
        options{.consistency = draws.below(2) == 0 ? Consistency::asynchronous : Consistency::bounded_staleness,
                .max_staleness = static_cast<std::int64_t>(draws.below(3))},
        server(std::make_unique<Adding>(draws.below(2) == 0), static_cast<int>(workers), options),
        working(workers) {
    server.set_model_parameters(model_of(0, 0, 0));
  }

  std::string describe() const {
    return std::to_string(workers) + " workers, " +
           (options.consistency == Consistency::asynchronous ? "asynchronous"
                                                             : "bound " + std::to_string(options.max_staleness));
  }

  std::string verdict() const {
    for (const std::string& complaint : complaints) {
      if (!complaint.empty()) return complaint;
    }
    const ModelSnapshot now = server.snapshot();
    auto rest = static_cast<std::uint64_t>(numbers_of(*now.parameters)[0]);
    std::int64_t applied = 0;
    for (const auto& its : was_taken) {
      for (const bool taken : its) {
        if (rest % 4 != (taken ? 1u : 0u)) return "a push was lost, applied twice, or applied though it threw";
        applied += taken ? 1 : 0;
        rest /= 4;
      }
    }
    if (now.version != applied) return "the version is not how many pushes there were";
    if (numbers_of(*now.parameters)[3] != 0) return "a step was none that anybody had asked for";
    std::int64_t counted = 0;
    for (const auto& [staleness, count] : server.staleness()) counted += count;
    return counted == applied ? "" : "not as many are counted as were applied";
  }

  std::uint64_t workers;
  std::uint64_t throws_in;  // one of so many; none, where 0
  bool some_leave;
  ParameterServerOptions options;
  ParameterServer server;
  std::atomic<std::uint64_t> working;
  std::array<std::array<bool, kMostPushes>, kWorkers> was_taken = {};
  std::array<std::string, kWorkers + 1> complaints = {};
};

void look(const ModelSnapshot& now, std::string& complaint) {
  double applied = 0;
  for (auto rest = static_cast<std::uint64_t>(numbers_of(*now.parameters)[0]); rest > 0; rest /= 4)
    applied += static_cast<double>(rest % 4);
  if (applied != numbers_of(*now.parameters)[1]) complaint = "a snapshot is not of one version";
  if (applied != static_cast<double>(now.version)) complaint = "a snapshot has the number of another version";
}

void work(Run& run, std::size_t worker, RandomStream& draws) {
  if (worker >= run.workers) return;
  const int number = static_cast<int>(worker);
  const std::size_t pushes = 1 + draws.below(kMostPushes);
  ModelSnapshot base;
  for (std::size_t i = 0; i < pushes; ++i) {
    const bool throws = run.throws_in > 0 && draws.below(run.throws_in) == 0;
    const double power = static_cast<double>(std::uint64_t{1} << (2 * (worker * kMostPushes + i)));
    testing::dawdle(draws);
    switch (draws.below(6)) {
      case 0: break;  // pushes without a pull
      case 1: look(run.server.snapshot(), run.complaints[worker]); break;
      case 2:
        if (run.some_leave) {
          run.server.leave(number);
          testing::dawdle(draws);
          run.server.join(number);
        }
        break;
      default:
        base = run.server.pull(number);
        look(base, run.complaints[worker]);
        break;
    }
    try {
      run.server.push(number, model_of(power, 1, throws ? kThrows : 0), {.base = base});
      run.was_taken[worker][i] = true;
    } catch (const Error& error) {
      run.complaints[worker] = error.what();
    } catch (const std::runtime_error&) {
      if (!throws) run.complaints[worker] = "a push threw what another was told to";
    }
  }
  run.server.leave(number);
  --run.working;
}

// As a checkpoint has them: each push is a version, and a clock of who made it.
void look_at_checkpoint(Run& run, std::string& complaint) {
  ParameterSet saved;
  run.server.save(saved);
  const std::int64_t version = saved.at("server/version").values<std::int64_t>()[0];
  if (numbers_of(saved)[1] != static_cast<double>(version)) complaint = "a checkpoint is not of one version";
  const std::span<const std::int64_t> clocks = saved.at("server/clocks").values<std::int64_t>();
  // Those that have left are brought to the slowest.
  if (!run.some_leave && run.working == run.workers &&
      std::accumulate(clocks.begin(), clocks.end(), std::int64_t{0}) != version)
    complaint = "a checkpoint has the clocks of another version";
}

void control(Run& run, RandomStream& draws) {
  std::string& complaint = run.complaints[kWorkers];
  while (run.working > 0) {
    testing::dawdle(draws);
    switch (draws.below(6)) {
      case 0:
        run.server.set_parameters(draws.below(2) == 0 ? GradientChangeMode::ascent : GradientChangeMode::descent);
        break;
      case 1: run.server.set_rate_factor(kFactors[draws.below(kFactors.size())]); break;
      case 2: look(run.server.snapshot(), complaint); break;
      case 3: look_at_checkpoint(run, complaint); break;
      default: std::this_thread::yield(); break;
    }
  }
}

void keeps_every_push(std::uint64_t seed) {
  testing::run_interleavings<Run>(seed, {.threads = kWorkers, .runs = kRuns}, work, control);
}

class ServerInterleavings : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(ServerInterleavings, KeepEveryPushOnce) { keeps_every_push(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Seeds, ServerInterleavings, ::testing::Range<std::uint64_t>(0, kTests));

}  // namespace
}  // namespace tutti
