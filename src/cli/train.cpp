// `tutti train run.json`: trains what a run file describes, on this process or as one of several.
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/report/metrics_file.hpp>
#include <tutti/report/population_picture.hpp>
#include <tutti/report/progress_report.hpp>
#include <tutti/report/tensorboard_file.hpp>
#include <tutti/report/trace_file.hpp>
#include <tutti/train/data_store.hpp>
#include <tutti/train/trainer.hpp>

#include "cli/command_line.hpp"
#include "cli/interruption.hpp"
#include "cli/ranks.hpp"
#include "cli/run_document.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

using Reason = event::RunEnded::Reason;

struct TrainRequest {
  bool resume = false;
  bool quiet = false;
  bool json = false;
  std::string from;
  std::string trace;
};

// The file is made when the run has its folder, which it may be in.
class TraceFromTheStart : public Observer {
 public:
  explicit TraceFromTheStart(std::string file) : file_(std::move(file)) {}

  void on(const Event& event) override {
    if (std::holds_alternative<event::RunStarted>(event)) trace_.emplace(file_);
    if (trace_) trace_->on(event);
  }

 private:
  std::string file_;
  std::optional<TraceFile> trace_;
};

Events observers(const Run& run, const TrainRequest& request) {
  Events events;
  const ProgressMode mode = request.json    ? ProgressMode::json
                            : request.quiet ? ProgressMode::quiet
                                            : ProgressMode::automatic;
  events.add(std::make_shared<ProgressReport>(ProgressOptions{.mode = mode}));
  events.add(std::make_shared<MetricsFile>(run.output, MetricsFileOptions{.every_steps = run.train.log_every}));
  events.add(std::make_shared<TensorBoardFile>(run.output, TensorBoardFileOptions{.every_steps = run.train.log_every}));
  if (std::holds_alternative<strategy::PopulationBased>(run.graph.effective_strategy()))
    events.add(std::make_shared<PopulationPicture>(
        run.output,
        PopulationScore{.name = "validation " + run.train.best_by, .higher_is_better = is_higher_better(run)}));
  if (!request.trace.empty()) events.add(std::make_shared<TraceFromTheStart>(request.trace));
  return events;
}

// As it was started.
std::string how_to_start() {
  const std::optional<ProcessPlace> place = own_place();
  if (!place) return "tutti train";
  if (place->launcher == "tutti launch") return fmt::format("tutti launch --processes {} -- train", place->size);
  return fmt::format("by {}: tutti train", place->launcher);
}

void tell_result(const TrainResult& result, const TrainRequest& request, const RunDocument& source) {
  if (result.reason == Reason::interrupted) {
    fmt::print(request.json ? stderr : stdout, "{} of {} {}s are done; to go on: {} {} --resume\n", result.step,
               result.steps, result.unit, how_to_start(), source.words());
    return;
  }
  if (request.json || request.quiet) return;
  if (result.step >= result.steps && result.last_checkpoint.empty()) {
    const std::string were_taken =
        result.step == result.steps
            ? fmt::format("all {} {}s were taken before", result.steps, result.unit)
            : fmt::format("{} {}s were taken before, and the run has {}: nothing was left to do", result.step,
                          result.unit, result.steps);
    fmt::print("{}; {} may ask for more\n", were_taken,
               result.unit == "step" ? "train.epochs or train.steps" : fmt::format("graph.strategy.{}s", result.unit));
  }
  if (result.best.value)
    fmt::print("best: {} {:.4f}, after {} {}\n", result.best.of, *result.best.value, result.unit, result.best.step);
}

}  // namespace

void run_train(Arguments arguments) {
  RunDocument source("train");
  TrainRequest request;
  CommandLine line("Trains what a run file describes: evaluates, reports, and writes checkpoints as it goes.",
                   "tutti train");
  source.add_to(line);
  line.flag("--resume", request.resume, "go on from the last checkpoint in the output folder");
  line.option("--from", request.from, "begin with the weights of this safetensors file");
  source.add_output_to(line);
  line.option("--trace", request.trace, "write a timeline of all replicas to this file, for ui.perfetto.dev");
  const CommandOption quiet = line.flag("--quiet", request.quiet, "tell warnings and the end alone");
  line.flag("--json", request.json, "tell what happens as JSON, an object on a line").excludes(quiet);
  if (!line.parse(arguments)) return;

  std::optional<Interruption> interruption;  // until there is a run that it could end well, it ends the program
  std::signal(SIGPIPE, SIG_IGN);             // whoever reads what is told may go; the run goes on
  std::optional<Run> run;
  const auto prepare = [&] {
    if (!request.trace.empty()) {
      const std::filesystem::path folder = std::filesystem::absolute(request.trace).parent_path();
      if (!std::filesystem::is_directory(folder))
        throw UsageError(fmt::format("--trace {}: there is no folder {}", request.trace, folder.string()));
    }
    run = source.read();
    if (const auto place = own_place()) {
      if (const auto why = why_not_trainable(*run, place->size)) throw UsageError(*why);
    }
  };
  bool is_interrupted = false;
  const auto train_it = [&](Communicator* world) {
    interruption.emplace();
    const bool speaks = world == nullptr || world->rank() == Rank{0};
    const TrainResult result = train(*run, speaks ? observers(*run, request) : Events(),
                                     {.world = world,
                                      .resume = request.resume,
                                      .from = request.from,
                                      .is_interrupted = [&] { return interruption->is_wanted(); },
                                      .trace = !request.trace.empty()});
    if (speaks) tell_result(result, request, source);
    is_interrupted = result.reason == Reason::interrupted;
  };
  // What rank 0 makes above the folder where the workers meet goes with the run, unless that has written something.
  std::optional<FolderForNow> above_store;
  const auto meets_in = [&]() -> std::optional<MeetingFolder> {
    const auto store = run ? data_store_of(*run) : std::nullopt;
    if (!store) return std::nullopt;
    if (own_place()->rank == Rank{0}) above_store.emplace(store->path.parent_path());
    return MeetingFolder{.path = store->path, .is_own = store->is_own};
  };
  try {
    run_with_processes({.prepare = prepare, .meets_in = meets_in, .work = train_it});
  } catch (const ToldElsewhere&) {
    throw Ended{0};  // the exit code of the job is that of the process that tells
  }
  // As a shell tells it where a signal ended a program; another process may have got it.
  if (is_interrupted) throw Ended{128 + (interruption->is_wanted() ? interruption->signal() : SIGINT)};
}

}  // namespace tutti::cli
