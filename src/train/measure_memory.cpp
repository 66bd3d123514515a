#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/data/subset.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_store.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/found_partitions.hpp>
#include <tutti/train/node_costs.hpp>

#include "evaluation_rows.hpp"
#include "training.hpp"

namespace tutti {
namespace {

// After some steps malloc has found its way of placing what every step takes. Where steps take long they are large, and
// the first ones tell.
constexpr int kSteps = 16;
constexpr int kLeastSteps = 2;
constexpr std::chrono::seconds kLongEnough{10};
constexpr std::chrono::seconds kLongEvaluation{2};
constexpr std::int64_t kEvaluatedBatches = 8;

double most_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stod(line.substr(6));
  }
  throw Error("/proc/self/status does not say VmHWM");
}

// Some of them at a time, for as long as it may take.
void evaluate_some(Stepper& stepper, const std::shared_ptr<const Dataset>& rows, std::int64_t at_a_time) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t first = 0; first < rows->size(); first += at_a_time) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(rows->size() - first, at_a_time)));
    std::iota(numbers.begin(), numbers.end(), first);
    (void)stepper.evaluate(std::make_shared<SubsetDataset>(rows, std::move(numbers)));
    if (std::chrono::steady_clock::now() - begin > kLongEvaluation) return;
  }
}

}  // namespace

double measure_memory(const Run& run) {
  DataSplits data = open_data(run);
  Run tried = wants_partitions(run) ? with_found_partitions(run, measure_node_costs(run, *data.train)) : run;
  if (const auto store = data_store_of(run)) {  // that of the run may be in use
    auto strategy = std::get<strategy::ModelParallel>(tried.graph.effective_strategy());
    const std::string name = fmt::format("tutti-check-{}", ::getpid());
    strategy.communication = strategy::DataStore{(std::filesystem::temp_directory_path() / name).string()};
    tried.graph.set_strategy(strategy);
  }
  if (const auto* federated = std::get_if<strategy::Federated>(&tried.graph.effective_strategy())) {
    strategy::Federated shorter = *federated;  // a few steps of each client tell
    const auto shorten = [](const strategy::LocalTraining& local) {
      return strategy::LocalTraining{.steps = local.steps > 0 ? std::min<std::int64_t>(local.steps, kLeastSteps)
                                                              : kLeastSteps};
    };
    shorter.local = shorten(federated->local);
    // Who does not do all of it has other times.
    if (auto* round = std::get_if<strategy::Synchronous>(&shorter.round)) round->deadline = 0;
    tried.graph.set_strategy(shorter);
    tried.output = std::filesystem::temp_directory_path().string();  // a trial leaves nothing behind
    for (ClientGroup& group : tried.clients) {
      if (group.local) group.local = shorten(*group.local);
    }
  }
  // So that there are updates, and the state of the optimizer, among the steps.
  tried.train.accumulate = std::min<std::int64_t>(run.train.accumulate, kLeastSteps);
  const Events nobody;
  const TrainOptions options;
  const detail::Training training{.run = std::make_shared<const Run>(std::move(tried)),
                                  .data = std::move(data),
                                  .events = nobody,
                                  .options = options,
                                  .steps = kSteps,
                                  .steps_per_epoch = 1};
  if (std::holds_alternative<strategy::PopulationBased>(training.run->graph.effective_strategy())) {
    const double to_come = detail::try_members(training, kSteps);
    return most_resident_bytes() + to_come;
  }
  const std::unique_ptr<Stepper> stepper = detail::make_stepper(training);
  stepper->begin(0);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    if (step >= kLeastSteps && std::chrono::steady_clock::now() - begin > kLongEnough) break;
    (void)stepper->step(/*is_interrupted=*/false);
  }
  // What comes between steps: an evaluation, and all that a checkpoint has.
  for (const std::shared_ptr<const Dataset>& rows : {training.data.validation, training.data.test}) {
    if (rows) evaluate_some(*stepper, rows, kEvaluatedBatches * detail::rows_at_once(run));
  }
  ParameterSet checkpoint;
  stepper->save(checkpoint);
  return most_resident_bytes();
}

}  // namespace tutti
