// Runs that train a population: generations of members, each a run of its own.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/coordinate/member_processes.hpp>
#include <tutti/coordinate/population.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "graph_member.hpp"
#include "run_comparison.hpp"
#include "run_values.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

using Json = nlohmann::ordered_json;
using Reason = event::RunEnded::Reason;
namespace fs = std::filesystem;

double median_of(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

const strategy::PopulationBased& strategy_of(const Training& training) {
  return std::get<strategy::PopulationBased>(training.run->graph.effective_strategy());
}

std::int64_t replicas_of(const strategy::PopulationBased& strategy) {
  const auto* inner = std::get_if<strategy::DataParallel>(&strategy.inner);
  return inner == nullptr ? 1 : inner->num_replicas;
}

// This process's share of the cores that members may have.
std::int64_t cores_here(const strategy::PopulationBased& strategy, Communicator* world) {
  if (world == nullptr) return strategy.threads > 0 ? strategy.threads : usable_core_count();
  const std::int64_t rank = world->rank().value;
  if (strategy.threads > 0) return strategy.threads / world->size() + (rank < strategy.threads % world->size() ? 1 : 0);
  const auto is_here = [&](Rank peer) { return world->transport().locality(peer) != Locality::remote; };
  return usable_core_count() / std::ranges::count_if(all_ranks(world->size()), is_here);
}

// That many members train at a time on this process.
int places_here(const strategy::PopulationBased& strategy, Communicator* world) {
  return static_cast<int>(
      std::clamp<std::int64_t>(cores_here(strategy, world) / replicas_of(strategy), 1, strategy.population_size));
}

MemberThreadsOptions threads_for(const Training& training, const strategy::PopulationBased& strategy) {
  const auto ground = std::make_shared<const MemberGround>(training);
  return {.make = [ground](const MemberTask& task) { return make_graph_member(ground, task); },
          .threads = places_here(strategy, training.options.world),
          .deadline = training.run->train.deadline,
          .prepare_thread = use_one_thread};
}

// Whether some of its rates depend on how long it is.
bool goes_by_length(const Run& run) {
  const schedule::Kind& kind = run.schedule.kind;
  const auto is_searched = [](const SearchDimension& its) { return its.path.starts_with("schedule"); };
  return !(std::holds_alternative<schedule::Constant>(kind) || std::holds_alternative<schedule::Step>(kind)) ||
         std::ranges::any_of(run.search.dimensions, is_searched);
}

// On rank 0, or where there is one process.
class PopulationFit {
 public:
  explicit PopulationFit(Training& training)
      : training_(training), run_(*training.run), strategy_(strategy_of(training)), population_(options()) {}

  // `places`: how many members train at a time on all processes.
  void run(std::int64_t places) {
    if (training_.options.resume) resume();
    settle_first_weights();
    if (training_.goes_on)
      refuse_what_members_are_not();
    else
      refuse_what_no_member_can_be();
    if (training_.options.trace)
      training_.warnings.emplace_back("--trace: what members do is not traced; the timeline stays empty");
    start(training_, {.engine = describe(places), .notes = {}, .warnings = {}});
    has_started_ = true;
    if (!training_.goes_on) write_progress();
    if (const auto best = population_.best(); best && is_written(*best)) written_ = best;
    tell_what_is_not_told();
    const PopulationResult result = run_generations();
    // Unless it is; a run that was killed may have left it to this one.
    const bool is_another = write_best(result.generations);
    if (result.is_finished && (is_another || progress_.evaluated != result.generations))
      evaluate_best(result.generations);
    training_.result.reason = result.is_finished ? Reason::finished : Reason::interrupted;
    training_.result.step = result.generations;
    training_.result.seconds = training_.seconds();
    if (result.best)
      training_.result.best = {.of = training_.best_of(), .value = result.best->score, .step = result.best->generation};
  }

 private:
  PopulationOptions options() {
    return {.strategy = strategy_,
            .space = run_.search,
            .seed = run_.seed,
            .higher_is_better = is_higher_better(run_),
            .folder = run_.output,
            .keep_last = run_.checkpoints.keep_last,
            .is_interrupted = [this] { return is_interrupted(); },
            .on_member = [this](const MemberRecord& record, const MemberScore& score) { tell_member(record, score); },
            .on_generation = [this](std::int64_t generation) { end_generation(generation); },
            .on_progress =
                [this](std::int64_t generation, std::int64_t through) {
                  training_.events.tell(event::GenerationWentOn{
                      .generation = generation, .through = through, .members = strategy_.population_size});
                },
            .on_problem = [this](const std::string& sentence) { tell_problem(sentence); }};
  }

  bool is_interrupted() const {
    return (training_.options.is_interrupted && training_.options.is_interrupted()) ||
           (processes_ && processes_->is_interrupted());
  }

  PopulationResult run_generations() {
    const MemberThreadsOptions here = threads_for(training_, strategy_);
    try {
      if (training_.options.world == nullptr) {
        MemberThreads threads(here);
        return population_.run(threads);
      }
      processes_.emplace(training_.options.world->transport(), here);
      PopulationResult result = population_.run(*processes_);
      processes_->end();
      return result;
    } catch (const PeerError&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      throw Error(fmt::format("generation {}: {}", population_.finished() + 1, error.what()));
    }
  }

  std::string describe(std::int64_t places) const {
    const std::int64_t replicas = replicas_of(strategy_);
    const Communicator* world = training_.options.world;
    return fmt::format("{} of {} members at a time{}{}; up to {} that are idle stay in memory, all are in {}",
                       std::min(places, strategy_.population_size), strategy_.population_size,
                       world != nullptr ? fmt::format(", on {} processes", world->size()) : "",
                       replicas > 1 ? fmt::format(", on {} threads each", replicas) : "",
                       std::min(strategy_.idle, strategy_.population_size),
                       (fs::path(run_.output) / "members").string());
  }

  // --- before anything is begun ---

  // What no member could be trained with would otherwise be found by all of them, one after the other.
  void refuse_what_no_member_can_be() const {
    if (std::holds_alternative<strategy::WelchTTest>(strategy_.exploit) && training_.data.validation->size() < 2)
      throw UsageError("WelchTTest compares at least two scores of a member, and there is one row for validation");
    const auto ground = std::make_shared<const MemberGround>(training_);
    std::optional<UsageError> why;
    for (std::int64_t member = 0; member < strategy_.population_size; ++member) {
      try {
        (void)make_graph_member(ground, {.member = member,
                                         .hyper_parameters = population_.first_values(member),
                                         .seed = member_seed(run_.seed, member)});
        return;
      } catch (const UsageError& error) {
        if (!why) why = error;
      }
    }
    throw UsageError(*why);
  }

  // Weights of another graph would be found by all of them, too.
  void refuse_what_members_are_not() {
    const std::optional<MemberRecord> best = population_.best();
    if (!best) return;
    const auto ground = std::make_shared<const MemberGround>(training_);
    const auto state = population_.state_of(*best);
    const auto member = make_graph_member(ground, {.member = best->member,
                                                   .generation = best->generation,
                                                   .hyper_parameters = best->hyper_parameters,
                                                   .seed = member_seed(run_.seed, best->member),
                                                   .state = state});
    try {
      member->load(*state);
    } catch (const UsageError& error) {
      throw UsageError(
          fmt::format("the population in {} has not the weights of this graph: {}; --output takes another folder",
                      run_.output, error.what()));
    }
  }

  // What members begin with; those that have begun need it no more.
  void settle_first_weights() {
    const std::string given = training_.weights ? fs::absolute(training_.options.from).lexically_normal().string() : "";
    const bool all_have_begun = population_.finished() > 0;
    if (!training_.goes_on || (!all_have_begun && !knows_progress_)) {
      progress_.from = given;
    } else if (all_have_begun && !given.empty()) {
      training_.warnings.push_back(
          fmt::format("{} is not used: the population goes on", training_.options.from.string()));
    } else if (!all_have_begun && given != progress_.from) {
      throw UsageError(fmt::format("some members have not begun yet, and the others began {}",
                                   progress_.from.empty()
                                       ? "without weights; expected no --from"
                                       : "with weights; expected the same, --from " + progress_.from));
    }
    if (!progress_.from.empty())
      training_.warnings.push_back(
          fmt::format("to train best_run.json again, begin with the same weights: --from {}", progress_.from));
  }

  // --- what there is of an earlier run ---

  void resume() {
    const fs::path output = run_.output;
    if (!fs::exists(output / "population.jsonl")) {
      if (!CheckpointFolder(output / "checkpoints", {}).files().empty())
        throw UsageError(
            fmt::format("{} has a run in it that is no population: expected one, or --output with another folder",
                        output.string()));
      training_.warnings.push_back(fmt::format("there is nothing to resume in {}: beginning", run_.output));
      return;
    }
    training_.folder.emplace(output);
    if (!PopulationLog(output / "population.jsonl").read().empty()) {
      compare_with_earlier();
      population_.resume();
    }
    read_progress();
    if (population_.history().empty()) {
      if (training_.options.from.empty() && !progress_.from.empty())
        throw UsageError(
            fmt::format("no generation is finished in {}, and members began with weights; expected the "
                        "same, --from {}",
                        run_.output, progress_.from));
      progress_ = {};
      training_.warnings.push_back(fmt::format("there is no generation to resume in {}: beginning", run_.output));
      return;
    }
    training_.seconds_before = progress_.seconds;
    if (progress_.evaluated > population_.finished()) progress_.evaluated = 0;  // what came of them is gone
    if (goes_by_length(run_) && population_.finished() < strategy_.generations &&
        population_.history().back().of != strategy_.generations)
      training_.warnings.push_back(
          fmt::format("there are more or fewer generations than were meant to be: from now on the schedule of the "
                      "learning rate is that of {}",
                      strategy_.generations));
    training_.steps_before = std::min(progress_.told, population_.finished());
    training_.goes_on = true;
  }

  // --- what neither the log nor a member's file says ---

  struct Progress {
    double seconds = 0;          // of training
    std::int64_t told = 0;       // generations that reports were told of
    std::int64_t evaluated = 0;  // after so many generations the best was, with the rows to test with
    std::string from = {};       // the file of weights that members began with
  };

  fs::path progress_file() const { return fs::path(run_.output) / "members" / "progress.json"; }

  void write_progress() {
    progress_.seconds = training_.seconds();
    const Json json{{"seconds", progress_.seconds},
                    {"told", progress_.told},
                    {"evaluated", progress_.evaluated},
                    {"from", progress_.from}};
    fs::create_directories(progress_file().parent_path());
    write_file(progress_file(), json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  void read_progress() {
    try {
      const JsonDocument document = JsonDocument::read_file(progress_file());
      const JsonValue its = document.root();
      progress_ = {.seconds = its.at("seconds").number(),
                   .told = its.at("told").integer(),
                   .evaluated = its.at("evaluated").integer(),
                   .from = its.at("from").string()};
    } catch (const UsageError& error) {
      if (fs::exists(progress_file()))
        training_.warnings.push_back(fmt::format("how long the population has trained is lost: {}", error.what()));
      progress_ = {.told = population_.finished()};
      knows_progress_ = false;
    }
  }

  void compare_with_earlier() {
    Json before;
    try {
      before = JsonDocument::read_file(fs::path(run_.output) / "run.json").root().raw();
    } catch (const UsageError&) {
      return;  // Without it nobody can tell.
    }
    refuse_other_population(before, *run_.resolved);
    const std::vector<std::string> changes = changes_since(before, *run_.resolved);
    if (!changes.empty())
      training_.warnings.push_back(
          fmt::format("the run file has changed since the population was trained, and best_run.json has what it says "
                      "now for all generations: {}",
                      fmt::join(changes, ", ")));
  }

  // --- what happens ---

  bool is_better(double score, double than) const { return is_higher_better(run_) ? score > than : score < than; }

  void tell_problem(const std::string& sentence) {
    if (has_started_)
      training_.events.tell(event::Warned{sentence});
    else
      training_.warnings.push_back(sentence);
  }

  void tell_member(const MemberRecord& record, const MemberScore& score) {
    event::MemberEvaluated its{.generation = record.generation,
                               .member = record.member,
                               .score = record.score.value_or(std::numeric_limits<double>::quiet_NaN()),
                               .failure = record.failure,
                               .parent = record.parent ? std::optional(record.parent->member) : std::nullopt,
                               .hyper_parameters = {},
                               .measured = score.measured};
    for (const HyperParameter& value : record.hyper_parameters)
      its.hyper_parameters.emplace_back(value.path, value.json);
    if (record.score && (!best_ || is_better(*record.score, *best_->score))) {
      best_ = record;
      its.is_best = true;
    }
    training_.events.tell(its);
  }

  // What is in the log, and a run that was killed has not told of; nor of members that are further than the others,
  // whose generation has not ended. What they measured beside their scores is gone.
  void tell_what_is_not_told() {
    std::int64_t last = 0;
    for (const MemberRecord& record : population_.history()) {
      last = std::max(last, record.generation);
      const bool is_told = record.generation <= training_.steps_before;
      if (is_told && record.score && (!best_ || is_better(*record.score, *best_->score))) best_ = record;
    }
    for (std::int64_t generation = training_.steps_before + 1; generation <= last; ++generation) {
      for (const MemberRecord& record : population_.of_generation(generation)) tell_member(record, {});
      if (generation <= population_.finished()) end_generation(generation);
    }
    best_ = population_.best();
  }

  void end_generation(std::int64_t generation) {
    event::GenerationEnded its{.generation = generation,
                               .seconds = training_.seconds(),
                               .score_name = training_.best_of(),
                               .higher_is_better = is_higher_better(run_)};
    std::vector<double> scores;
    const MemberRecord* best = nullptr;
    const std::vector<MemberRecord> records = population_.of_generation(generation);
    for (const MemberRecord& record : records) {
      if (record.parent) ++its.took_over;
      if (!record.score) {
        ++its.failed;
        continue;
      }
      scores.push_back(*record.score);
      if (best == nullptr || is_better(*record.score, *best->score)) best = &record;
    }
    its.best_score = best == nullptr ? std::numeric_limits<double>::quiet_NaN() : *best->score;
    its.best_member = best == nullptr ? 0 : best->member;
    its.median_score = median_of(std::move(scores));
    training_.events.tell(its);
    (void)write_best(generation);
    progress_.told = generation;
    write_progress();
  }

  // --- what is left of it ---

  fs::path replay_file() const { return training_.folder->path() / "best_run.json"; }
  std::string replay_text(const MemberRecord& best) const {
    const std::string how =
        progress_.from.empty() ? "" : fmt::format("// To be begun with the same weights: --from {}\n", progress_.from);
    return how + replay_of(best).dump(2) + "\n";
  }

  // By a run that this one goes on from.
  bool is_written(const MemberRecord& best) {
    std::vector<std::string> problems;
    const auto checkpoint = CheckpointFolder(training_.folder->checkpoints(), {}).read_last(problems);
    std::ifstream file(replay_file(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return checkpoint && text == replay_text(best) && checkpoint->arrays == population_.state_of(best)->weights;
  }

  // Where the best has changed: its weights, and a run file that trains it again. Whether it has.
  bool write_best(std::int64_t generation) {
    const std::optional<MemberRecord> best = population_.best();
    if (!best || (written_ && written_->key() == best->key())) return false;
    const auto member_run = std::make_shared<const Run>(run_of_member(run_, best->hyper_parameters));
    Checkpoint checkpoint;
    checkpoint.state.step = generation;
    checkpoint.state.seconds = training_.seconds();
    // Not the generation of the best, which may be an earlier one: the only checkpoint is that of the best.
    checkpoint.state.best = {.of = training_.best_of(), .value = best->score, .step = generation};
    checkpoint.state.blas = set_up_blas().kernels;
    checkpoint.state.run = member_run->resolved->dump();
    checkpoint.arrays = population_.state_of(*best)->weights;
    CheckpointFolder folder(training_.folder->checkpoints(), {.keep_last = 1});
    training_.result.last_checkpoint = folder.write(checkpoint);
    training_.events.tell(
        event::CheckpointWritten{.step = generation, .path = training_.result.last_checkpoint.string()});
    write_file(replay_file(), replay_text(*best));
    written_ = best;
    return true;
  }

  // The line of the best, generation by generation.
  Json replay_of(const MemberRecord& best) const {
    // All phases have values of their own; the file itself has those of the last.
    Json document = with_values(document_of_member(run_), all_values(run_.search, best.hyper_parameters)).root().raw();
    std::vector<RunPhase> phases;
    for (const MemberRecord& record : population_.lineage_of(best)) {
      strategy::PopulationBased then = strategy_;
      if (record.of > 0) then.generations = record.of;
      RunPhase phase = phase_of_generation(then, record.generation);
      phase.seed = member_seed(run_.seed, record.member);
      phase.new_optimizer = record.parent && record.has_copied(strategy::MemberPart::weights) &&
                            !record.has_copied(strategy::MemberPart::optimizer_state);
      phase.only_end = true;  // as members are
      phase.set = all_values(run_.search, record.hyper_parameters);
      phases.push_back(std::move(phase));
    }
    document["phases"] = to_json(phases);
    document["seed"] = run_.seed;
    document["output"] = (fs::path(run_.output) / "best_run").string();
    return document;
  }

  void evaluate_best(std::int64_t generation) {
    if (!training_.data.test || !best_) return;
    const auto member_run = std::make_shared<const Run>(run_of_member(run_, best_->hyper_parameters));
    const auto net = std::make_shared<GraphModule>(member_run->graph, member_run->seed);
    fill_module(population_.state_of(*best_)->weights, *net);
    const Evaluation evaluation =
        Evaluator(member_run, {.threads = static_cast<int>(usable_core_count())}).evaluate(net, training_.data.test);
    training_.events.tell(event::EvaluationEnded{.step = generation,
                                                 .epoch = generation,
                                                 .seconds = training_.seconds(),
                                                 .split = "test",
                                                 .rows = evaluation.rows,
                                                 .loss = evaluation.loss,
                                                 .metrics = evaluation.metrics});
    progress_.evaluated = generation;
    write_progress();
  }

  Training& training_;
  const Run& run_;
  strategy::PopulationBased strategy_;
  Population population_;
  std::optional<MemberProcesses> processes_;
  bool has_started_ = false;
  Progress progress_;
  bool knows_progress_ = true;
  std::optional<MemberRecord> best_;
  std::optional<MemberRecord> written_;  // whose weights are in checkpoints/
};

// On the other ranks.
void serve(Training& training) {
  start(training, {});
  serve_members(training.options.world->transport(), threads_for(training, strategy_of(training)),
                training.options.is_interrupted);
}

}  // namespace

void fit_population(Training& training) {
  set_up_blas();
  Communicator* world = training.options.world;
  if (world == nullptr) return PopulationFit(training).run(places_here(strategy_of(training), nullptr));
  std::int64_t places = places_here(strategy_of(training), world);
  all_reduce(*world, std::span(&places, 1));
  if (training.speaks())
    PopulationFit(training).run(places);
  else
    serve(training);
  // How it ended, which rank 0 knows.
  std::array<std::int64_t, 2> end{static_cast<std::int64_t>(training.result.reason), training.result.step};
  broadcast(*world, std::span(end));
  training.result.reason = static_cast<Reason>(end[0]);
  training.result.step = end[1];
}

double try_members(const Training& training, std::int64_t steps) {
  const Run& run = *training.run;
  strategy::PopulationBased strategy = strategy_of(training);
  const int at_a_time = places_here(strategy, nullptr);
  const std::int64_t idle = std::min(strategy.idle, strategy.population_size);
  strategy.population_size = at_a_time;
  strategy.generations = 1;
  strategy.generation = {.steps = steps};
  Run shorter = run;
  shorter.graph.set_strategy(strategy);
  const Training around{.run = std::make_shared<const Run>(std::move(shorter)),
                        .data = training.data,
                        .events = training.events,
                        .options = training.options};
  set_up_blas();
  MemberThreads pool(threads_for(around, strategy));
  Population population({.strategy = strategy, .space = run.search, .seed = run.seed});
  const auto state = population.state_of(*population.run(pool).best);
  // Those that were tried stay in memory here, too. Later a member has what it goes on from, and reads it from a copy;
  // one is written at a time.
  const std::int64_t to_come = std::max<std::int64_t>(idle - at_a_time, 0) + 2 * at_a_time + 1;
  return static_cast<double>(to_come) * static_cast<double>(state->weights.bytes() + state->optimizer.bytes());
}

}  // namespace tutti::detail
