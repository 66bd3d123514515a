// A logistic regression over a million features, of which a row has a hundred: one thread, two threads that share the
// weights without locks, and two that take a lock for each row. All take turns in one process, a repetition each.
#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/shared_parameters.hpp>

#include "coordinator_parts.hpp"
#include "report.hpp"
#include "step_timer.hpp"

namespace tutti::bench {
namespace {

constexpr std::size_t kFeatures = 1'000'000;
constexpr std::size_t kInARow = 100;
constexpr std::size_t kRows = 50'000;
constexpr std::size_t kRowsInAStep = 1000;
constexpr float kRate = 0.05f;
// What is learnt before anybody is measured, by each engine from the same weights.
constexpr int kEpochs = 5;
constexpr double kWorseBy = 0.02;  // than one thread, at most

struct SparseRows {
  std::vector<std::uint32_t> features;  // kInARow of each row
  std::vector<float> values;
  std::vector<float> labels;  // 0 or 1
};

// Labels are what some weights say, now and then wrong.
SparseRows random_rows() {
  RandomStream draws({2026});
  std::vector<float> truth(kFeatures);
  for (float& weight : truth) weight = static_cast<float>(draws.normal());
  SparseRows rows;
  for (std::size_t row = 0; row < kRows; ++row) {
    double margin = 0;
    for (std::size_t i = 0; i < kInARow; ++i) {
      // Some features are common, most are rare.
      const double place = draws.uniform();
      const auto feature = static_cast<std::uint32_t>(place * place * static_cast<double>(kFeatures));
      const float value = draws.uniform_float() - 0.5f;
      rows.features.push_back(feature);
      rows.values.push_back(value);
      margin += static_cast<double>(truth[feature] * value);
    }
    const bool is_wrong = draws.below(20) == 0;
    rows.labels.push_back((margin > 0) != is_wrong ? 1.0f : 0.0f);
  }
  return rows;
}

// Weights as one thread has them.
class OwnWeights {
 public:
  explicit OwnWeights(std::vector<float>& weights) : weights_(weights) {}
  float load(std::size_t index) const { return weights_[index]; }
  void add(std::size_t index, float value) const { weights_[index] += value; }

 private:
  std::vector<float>& weights_;
};

float probability(float margin) { return 1 / (1 + std::exp(-margin)); }

template <typename Weights>
float margin_of(const SparseRows& rows, std::size_t row, const Weights& weights) {
  float margin = 0;
  for (std::size_t i = row * kInARow; i < (row + 1) * kInARow; ++i)
    margin += rows.values[i] * weights.load(rows.features[i]);
  return margin;
}

template <typename Weights>
void learn_row(const SparseRows& rows, std::size_t row, const Weights& weights) {
  const float step = kRate * (rows.labels[row] - probability(margin_of(rows, row, weights)));
  for (std::size_t i = row * kInARow; i < (row + 1) * kInARow; ++i)
    weights.add(rows.features[i], step * rows.values[i]);
}

class Engine {
 public:
  explicit Engine(const SparseRows& rows) : rows_(rows) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The next ones, from the first one again after the last.
  virtual void learn(std::size_t rows) = 0;
  virtual double loss() const = 0;

 protected:
  template <typename Weights>
  double loss_of(const Weights& weights) const {
    double loss = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      const double margin = static_cast<double>(margin_of(rows_, row, weights));
      loss += std::log1p(std::exp(rows_.labels[row] > 0 ? -margin : margin));
    }
    return loss / static_cast<double>(kRows);
  }

  const SparseRows& rows_;
  std::size_t next_ = 0;
};

class OneThread : public Engine {
 public:
  using Engine::Engine;
  void learn(std::size_t rows) override {
    for (std::size_t i = 0; i < rows; ++i) learn_row(rows_, next_++ % kRows, OwnWeights(weights_));
  }
  double loss() const override { return loss_of(OwnWeights(weights_)); }

 private:
  mutable std::vector<float> weights_ = std::vector<float>(kFeatures);
};

class TwoThreads : public Engine {
 public:
  TwoThreads(const SparseRows& rows, bool takes_locks) : Engine(rows), takes_locks_(takes_locks), shared_(zeros()) {}

  // Each takes every second block of rows.
  void learn(std::size_t rows) override {
    const std::size_t first = next_;
    next_ += rows;
    constexpr std::size_t kBlock = 100;
    const auto work = [&](std::size_t thread) {
      const SharedArray<float> weights = shared_.array<float>(0);
      for (std::size_t block = thread * kBlock; block < rows; block += 2 * kBlock) {
        for (std::size_t i = block; i < std::min(block + kBlock, rows); ++i) {
          std::unique_lock lock(mutex_, std::defer_lock);
          if (takes_locks_) lock.lock();
          learn_row(rows_, (first + i) % kRows, weights);
        }
      }
    };
    const std::jthread other(work, 1);
    work(0);
  }
  double loss() const override { return loss_of(shared_.array<float>(0)); }

 private:
  static ParameterSet zeros() {
    ParameterSet set;
    set.add({.name = "weights", .shape = {static_cast<std::int64_t>(kFeatures)}});
    return set;
  }

  bool takes_locks_;
  SharedParameters shared_;
  std::mutex mutex_;
};

constexpr std::array<const char*, 3> kEngines{"one-thread", "lock-free", "locks"};

std::vector<std::unique_ptr<Engine>> engines_over(const SparseRows& rows) {
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::make_unique<OneThread>(rows));
  engines.push_back(std::make_unique<TwoThreads>(rows, false));
  engines.push_back(std::make_unique<TwoThreads>(rows, true));
  return engines;
}

struct HogwildPlace {
  friend std::strong_ordering operator<=>(const HogwildPlace&, const HogwildPlace&) = default;
};

struct HogwildResult {
  std::string engine;
  double loss = 0;     // after kEpochs
  cli::Timing timing;  // of a step

  HogwildPlace place() const { return {}; }
  std::pair<std::string, std::string> column() const { return {engine, ""}; }
};

std::string to_json_line(const HogwildResult& result) {
  return nlohmann::ordered_json{{"part", "hogwild"},
                                {"engine", result.engine},
                                {"rows_per_second", static_cast<double>(kRowsInAStep) / result.timing.median},
                                {"seconds", result.timing.median},
                                {"seconds_p10", result.timing.p10},
                                {"seconds_p90", result.timing.p90},
                                {"rows_per_step", kRowsInAStep},
                                {"loss", result.loss},
                                {"repetitions", result.timing.repetitions},
                                {"steps_per_repetition", result.timing.batch}}
      .dump();
}

void print_table(const std::vector<HogwildResult>& results) {
  const Points<HogwildResult> points(results);
  const auto speed = [&](const char* engine) { return points.speed({}, by(engine), by(kEngines[0])); };
  std::vector<std::vector<std::string>> rows{{"engine", "rows in a second", "over one thread", "loss"}};
  for (const HogwildResult& result : results) {
    rows.push_back({result.engine, fmt::format("{:.0f}", static_cast<double>(kRowsInAStep) / result.timing.median),
                    ratio_cell(speed(result.engine.c_str())), fmt::format("{:.4f}", result.loss)});
  }
  fmt::print("sparse logistic regression: {} features, {} in a row, {} rows; the loss after {} times all of them\n",
             kFeatures, kInARow, kRows, kEpochs);
  print_rows(rows);
  fmt::print("\n");
  print_targets("rows in a second",
                {judge("two threads without locks: at least 1.7 times one thread", speed(kEngines[1]), 1.7)});
}

}  // namespace

std::vector<std::string> measure_hogwild(const CoordinatorRequest& request) {
  const SparseRows rows = random_rows();
  const std::vector<std::unique_ptr<Engine>> engines = engines_over(rows);
  std::vector<double> losses;
  std::vector<std::string> failures;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    for (int epoch = 0; epoch < kEpochs; ++epoch) engines[i]->learn(kRows);
    losses.push_back(engines[i]->loss());
    if (!(losses[i] < losses[0] * (1 + kWorseBy)))
      failures.push_back(fmt::format("{} learns worse than one thread: a loss of {:.4f}, beside {:.4f}", kEngines[i],
                                     losses[i], losses[0]));
  }
  std::vector<StepCalls> calls;
  for (const std::unique_ptr<Engine>& engine : engines)
    calls.push_back({.run = [&](std::uint64_t steps) { engine->learn(steps * kRowsInAStep); }});
  std::vector<HogwildResult> results;
  for (int pass = 0; pass < request.run.passes; ++pass) {
    fmt::print(stderr, "pass {} of {}: hogwild\n", pass + 1, request.run.passes);
    const std::vector<cli::Timing> timings = time_steps(request.run.seconds, calls);
    for (std::size_t i = 0; i < engines.size(); ++i)
      results.push_back({.engine = kEngines[i], .loss = losses[i], .timing = timings[i]});
  }
  const std::vector<HogwildResult> combined = combine_passes(results);
  if (request.run.json) {
    for (const HogwildResult& result : combined) fmt::print("{}\n", to_json_line(result));
  } else {
    print_table(combined);
  }
  return failures;
}

}  // namespace tutti::bench
