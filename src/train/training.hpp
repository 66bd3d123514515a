// What a strategy gets to carry a run out, and the loop that those share which go step by step.
//
//   void fit_in_steps(Training& training) {
//     const std::unique_ptr<Stepper> stepper = make_stepper(training);
//     run_steps(training, *stepper);
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/train/checkpoint.hpp>
#include <tutti/train/output_folder.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/stepper.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::detail {

struct Training {
  std::shared_ptr<const Run> run;  // a step that misses its deadline still uses it
  DataSplits data;
  const Events& events;  // told on rank 0 alone
  const TrainOptions& options;
  std::int64_t steps = 0;
  std::int64_t steps_per_epoch = 0;
  std::optional<ParameterSet> weights = {};   // to begin with
  std::optional<Checkpoint> checkpoint = {};  // to go on from
  std::optional<OutputFolder> folder = {};    // on rank 0
  std::vector<std::string> warnings = {};
  std::string found_cut = {};  // for people, where partitions were found
  std::chrono::steady_clock::time_point began = {};
  // Of a population, which has other files than checkpoints: whether it goes on, after so many generations.
  bool goes_on = false;
  std::int64_t steps_before = 0;
  double seconds_before = 0;  // as far as they were written down
  TrainResult result = {};

  std::int64_t first_step() const { return checkpoint ? checkpoint->state.step : steps_before; }
  // Of training, what was before a resume included.
  double seconds() const {
    const double before = checkpoint ? checkpoint->state.seconds : seconds_before;
    return before + std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  // What tells the best evaluation, and of which rows: those for validation, or else those to test with.
  std::string best_of() const;
  // Where clients have layers of their own, what they measure counts, and not what the server does with somebody's; and
  // where the server has no rows to evaluate with.
  bool is_judged_by_clients() const;

  // Others serve rank 0, which alone takes steps.
  bool goes_alone = false;

  // Takes its steps by itself: nobody else has to agree to end.
  bool is_alone() const { return options.world == nullptr || options.world->size() == 1 || goes_alone; }
  bool speaks() const { return options.world == nullptr || options.world->rank() == Rank{0}; }
};

// What people are told of a run before it begins, in lines.
struct Description {
  std::string engine = {};
  std::vector<std::string> notes = {};
  std::vector<std::string> warnings = {};
};

// Once nothing is left that could be refused: the output folder is the run's from now on, and events begin.
void start(Training& training, const Description& description);

// From the beginning, or where the checkpoint ends, to the end of the run.
void run_steps(Training& training, Stepper& stepper);

// --- a strategy's own, in a file each: what it refuses before anything is begun, and what takes its steps ---

// Local, and DataParallel with AllReduce.
std::unique_ptr<Stepper> make_data_parallel_stepper(const Training& training);
std::unique_ptr<Stepper> make_model_parallel_stepper(const Training& training);
// DataParallel whose replicas do not wait for each other; and the run of it, of which rank 0 alone goes step by step.
std::unique_ptr<Stepper> make_asynchronous_stepper(const Training& training);
void fit_asynchronously(Training& training);
// A UsageError where an epoch of so many rows has a batch that the network cannot train with.
void refuse_rows_alone(const Run& run, std::int64_t rows);
// A step is a round.
std::unique_ptr<Stepper> make_federated_stepper(const Training& training);
// What the coordinator of the run makes.
std::unique_ptr<Stepper> make_custom_stepper(const Training& training);
// Local or DataParallel, phase after phase.
std::unique_ptr<Stepper> make_phased_stepper(const Training& training);
std::vector<PhaseSteps> phase_steps(const Run& run, const DataSplits& data);

// Goes by generations instead.
void fit_population(Training& training);
// As many members as train at the same time do so for some steps, and nothing is written. Returns how many bytes others
// will take that stay in memory.
double try_members(const Training& training, std::int64_t steps);

// The run's network, with the weights of the file where there is one to begin with.
std::shared_ptr<GraphModule> made_net(const Run& run, const std::optional<ParameterSet>& weights,
                                      const std::filesystem::path& from);

// That of the run's strategy, which why_not_trainable has nothing against.
std::unique_ptr<Stepper> make_stepper(const Training& training);

}  // namespace tutti::detail
