#include "data_parallel_report.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace tutti::bench {
namespace {

// In the order of their columns.
constexpr std::array<std::string_view, 5> kEngines{"tutti", "tutti-processes", "ddp", "single", "never-talk"};

const Wanted kThreads = by("tutti");
const Wanted kProcesses = by("tutti-processes");

std::vector<std::string> engines_of(const std::vector<StepResult>& points) {
  std::vector<std::string> engines;
  for (const std::string_view engine : kEngines) {
    if (std::ranges::any_of(points, by(std::string(engine)))) engines.emplace_back(engine);
  }
  return engines;
}

// The time, and with how many threads where an engine had the choice.
std::string step_cell(const Points<StepResult>& points, const StepPlace& place, const std::string& engine) {
  const StepResult* found = points.fastest(place, by(engine));
  if (found == nullptr) return "-";
  const std::string time = time_cell(found->timing.median);
  return engine == "single" ? fmt::format("{} ({} thread{})", time, found->threads, found->threads == 1 ? "" : "s")
                            : time;
}

void print_steps(const std::vector<StepResult>& all) {
  const Points<StepResult> points(all);
  const std::vector<std::string> engines = engines_of(all);
  std::vector<std::vector<std::string>> time_rows{{"model", "batch"}};
  std::vector<std::vector<std::string>> ratio_rows{{"model", "batch"}};
  for (const std::string& engine : engines) {
    time_rows[0].push_back(engine);
    if (engine != "tutti") ratio_rows[0].push_back(engine);
  }
  for (const StepPlace& place : points.places()) {
    time_rows.push_back({place.model, std::to_string(place.batch)});
    ratio_rows.push_back(time_rows.back());
    for (const std::string& engine : engines) {
      time_rows.back().push_back(step_cell(points, place, engine));
      if (engine != "tutti") ratio_rows.back().push_back(ratio_cell(points.speed(place, kThreads, by(engine))));
    }
  }
  fmt::print("2 replicas, float32, SGD, cross entropy: time of one step (batch: rows of both together)\n");
  print_rows(time_rows);
  fmt::print("tutti's speed over theirs\n");
  print_rows(ratio_rows);
  fmt::print("\n");
}

std::string memory_cell(std::uint64_t bytes) {
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
}

void print_memory(const std::vector<MemoryResult>& results) {
  std::vector<std::vector<std::string>> rows{{"model", "batch", "replicas", "parameters, once", "resident"}};
  for (const MemoryResult& result : results) {
    rows.push_back({result.model, std::to_string(result.batch), std::to_string(result.replicas),
                    memory_cell(result.parameter_bytes), memory_cell(result.resident_bytes)});
  }
  fmt::print(
      "tutti's memory after 20 steps of Adam (resident; without gradients and activations: freed memory was given\n"
      "back to the system first, and gradients that are still held were subtracted)\n");
  print_rows(rows);
  fmt::print("\n");
}

std::string percent_cell(double share) { return fmt::format("{:.2f} %", 100 * share); }

void print_accuracy(const std::vector<AccuracyResult>& results) {
  std::vector<std::vector<std::string>> rows{{"model", "batch", "compression", "epochs", "told right", "bytes sent"}};
  for (const AccuracyResult& result : results) {
    rows.push_back({result.model, std::to_string(result.batch), result.compression, std::to_string(result.epochs),
                    percent_cell(result.accuracy),
                    result.gradient_bytes == 0 ? "-"
                                               : percent_cell(static_cast<double>(result.sent_bytes) /
                                                              static_cast<double>(result.gradient_bytes))});
  }
  fmt::print("what is learnt from Fashion-MNIST, two replicas, SGD with momentum: share of test images told right\n");
  print_rows(rows);
  fmt::print("\n");
}

std::vector<StepPlace> places_of(const std::vector<std::string>& models, const std::vector<int>& batches) {
  std::vector<StepPlace> places;
  for (const std::string& model : models)
    for (const int batch : batches) places.push_back({model, batch});
  return places;
}

Judgement judge_memory(const std::vector<MemoryResult>& results) {
  constexpr double kMost = 1.15;
  Judgement judgement{"mlp-50m with Adam, batch 8: 8 replicas take at most 1.15 times the memory of one", "", false};
  const auto resident = [&](int replicas) -> std::optional<double> {
    const auto found = std::ranges::find_if(
        results, [&](const MemoryResult& one) { return one.model == kMemoryModel && one.replicas == replicas; });
    return found == results.end() ? std::nullopt : std::optional(static_cast<double>(found->resident_bytes));
  };
  const std::optional<double> one = resident(1);
  const std::optional<double> eight = resident(8);
  if (!one || !eight) return judgement;
  judgement.measured = ratio_cell(*eight / *one);
  judgement.reached = *eight / *one <= kMost;
  return judgement;
}

Judgement judge_agreement(const std::optional<AgreementResult>& agreement) {
  constexpr double kMost = 1e-4;
  Judgement judgement{"mlp-256, 50 steps: the loss differs from DDP's by at most 1e-4", "", false};
  if (!agreement) return judgement;
  judgement.measured = fmt::format("{:.1e}", agreement->largest_loss_difference);
  judgement.reached = agreement->largest_loss_difference <= kMost;
  return judgement;
}

// The worst of all compressions counts.
Judgement judge_accuracy(const std::vector<AccuracyResult>& results) {
  constexpr double kMostLost = 0.01;
  Judgement judgement{"cnn on Fashion-MNIST: every compression is within 1 point of none", "", false};
  const auto plain = std::ranges::find(results, "NoCompression", &AccuracyResult::compression);
  if (plain == results.end() || results.size() < 2) return judgement;
  const auto worst = std::ranges::min_element(results, {}, &AccuracyResult::accuracy);
  const double lost = plain->accuracy - worst->accuracy;
  judgement.measured = fmt::format("{:.2f} points less with {}", 100 * lost, worst->compression);
  judgement.reached = lost <= kMostLost;
  return judgement;
}

}  // namespace

std::vector<StepResult> fastest_of_each_engine(const std::vector<StepResult>& all) {
  const Points<StepResult> points(all);
  std::vector<StepResult> fastest;
  for (const StepResult& point : all) {
    if (points.fastest(point.place(), by(point.engine)) == &point) fastest.push_back(point);
  }
  return fastest;
}

void print_data_parallel_tables(const DataParallelMeasurements& measured) {
  if (!measured.steps.empty()) print_steps(measured.steps);
  if (!measured.memory.empty()) print_memory(measured.memory);
  if (!measured.accuracy.empty()) print_accuracy(measured.accuracy);
}

std::vector<Judgement> judge_data_parallel_targets(const DataParallelMeasurements& measured) {
  const Points<StepResult> points(measured.steps);
  std::vector<Judgement> judgements;
  const auto add = [&](const char* target, const std::vector<StepPlace>& places, const Wanted& ours, const char* theirs,
                       double least) {
    judgements.push_back(judge(
        target, places, [&](const StepPlace& place) { return points.speed(place, ours, by(theirs)); }, least));
  };
  const std::vector<std::string> all(kStepModels.begin(), kStepModels.end());
  add("every model and batch: threads take at most 1.10 times the time of replicas that never talk",
      places_of(all, {64, 512}), kThreads, "never-talk", 1 / 1.10);
  add("mlp-256 and mlp-1024, batch 64: threads have at least 2.5 times DDP's speed",
      places_of({"mlp-256", "mlp-1024"}, {64}), kThreads, "ddp", 2.5);
  add("mlp-256 and mlp-1024, batch 512: threads have at least 1.15 times DDP's speed",
      places_of({"mlp-256", "mlp-1024"}, {512}), kThreads, "ddp", 1.15);
  add("every MLP, batch 64: processes have at least 1.5 times DDP's speed",
      places_of({"mlp-256", "mlp-1024", "mlp-2048"}, {64}), kProcesses, "ddp", 1.5);
  add("mlp-1024 and mlp-2048: threads have at least the speed of a single loop, with 1 or 2 BLAS threads",
      places_of({"mlp-1024", "mlp-2048"}, {64, 512}), kThreads, "single", 1);
  judgements.push_back(judge_memory(measured.memory));
  judgements.push_back(judge_agreement(measured.agreement));
  judgements.push_back(judge_accuracy(measured.accuracy));
  return judgements;
}

}  // namespace tutti::bench
