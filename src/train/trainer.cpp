#include <tutti/train/trainer.hpp>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/assert.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/parameter_sets.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_store.hpp>
#include <tutti/train/found_partitions.hpp>
#include <tutti/train/node_costs.hpp>

#include "private_names.hpp"
#include "replica_mixer.hpp"
#include "run_comparison.hpp"
#include "stretch.hpp"
#include "trained_names.hpp"
#include "training.hpp"

namespace tutti {
namespace detail {
namespace {

using Json = nlohmann::ordered_json;
using Fit = void (*)(Training&);
using MakeStepper = std::unique_ptr<Stepper> (*)(const Training&);

// All replicas take the same step at the same time.
bool goes_in_step(const strategy::DataParallel& parallel) {
  if (const auto* server = std::get_if<strategy::ParameterServer>(&parallel.aggregation))
    return server->consistency == strategy::Consistency::synchronous;
  const auto* decentralized = std::get_if<strategy::Decentralized>(&parallel.aggregation);
  return decentralized == nullptr || !decentralized->gossip;
}

// Nobody waits for everybody.
bool is_asynchronous(const TrainingStrategy& strategy) {
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  return parallel != nullptr && !goes_in_step(*parallel);
}

// Why a run like this cannot go so.
std::optional<std::string> why_not_asynchronous(const Run& run) {
  if (private_names(run.graph))
    return "replicas that do not wait for each other share all parameters, and a subgraph is Local";
  if (run.train.accumulate > 1)
    return fmt::format("train.accumulate: replicas that do not wait for each other take 1 step to an update, found {}",
                       run.train.accumulate);
  if (!run.phases.empty()) return "phases: they need replicas that take their steps together";
  return std::nullopt;
}

// Of stages, which have none of its options.
bool is_bare(const strategy::DataParallel& parallel) {
  return parallel == strategy::DataParallel{.num_replicas = parallel.num_replicas};
}

// Of clients and members: gradients are averaged in each step.
bool is_plain(const strategy::Inner& inner) {
  const auto* parallel = std::get_if<strategy::DataParallel>(&inner);
  return parallel == nullptr ||
         (std::holds_alternative<strategy::AllReduce>(parallel->aggregation) && parallel->sync_every == 1);
}

// Null where a strategy does not go step by step.
MakeStepper find_stepper(const Run& run) {
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  if (std::holds_alternative<strategy::Local>(strategy) || (parallel != nullptr && goes_in_step(*parallel)))
    return run.phases.empty() ? make_data_parallel_stepper : make_phased_stepper;
  if (is_asynchronous(strategy)) return make_asynchronous_stepper;
  if (std::holds_alternative<strategy::ModelParallel>(strategy)) return make_model_parallel_stepper;
  if (std::holds_alternative<strategy::Federated>(strategy)) return make_federated_stepper;
  if (std::holds_alternative<strategy::Custom>(strategy)) return make_custom_stepper;
  return nullptr;
}

bool is_population(const Run& run) {
  return std::holds_alternative<strategy::PopulationBased>(run.graph.effective_strategy());
}

void fit_in_steps(Training& training) {
  const std::unique_ptr<Stepper> stepper = make_stepper(training);
  run_steps(training, *stepper);
}

// What carries a strategy out.
Fit find_fit(const Run& run) {
  if (is_population(run)) return fit_population;
  if (is_asynchronous(run.graph.effective_strategy())) return fit_asynchronously;
  return fit_in_steps;
}

// What people call a step.
std::string unit_of(const Run& run) {
  if (is_population(run)) return "generation";
  return std::holds_alternative<strategy::Federated>(run.graph.effective_strategy()) ? "round" : "step";
}

std::int64_t all_steps_of(const Run& run, const DataSplits& data, std::int64_t steps_per_epoch) {
  if (const auto* federated = std::get_if<strategy::Federated>(&run.graph.effective_strategy()))
    return federated->rounds;
  if (const auto* population = std::get_if<strategy::PopulationBased>(&run.graph.effective_strategy()))
    return population->generations;
  if (!run.phases.empty()) {
    std::int64_t sum = 0;
    for (const PhaseSteps& phase : phase_steps(run, data)) sum += phase.count;
    return sum;
  }
  const std::int64_t by_epochs = run.train.epochs ? *run.train.epochs * steps_per_epoch : *run.train.steps;
  return std::min(by_epochs, run.train.steps.value_or(by_epochs));
}

// --- what a run begins with: rank 0 reads it, and the others hear of it ---

// Without its texts.
std::vector<double> numbers_of(const TrainState& state) {
  return {static_cast<double>(state.step),      state.seconds,
          state.best.value ? 1.0 : 0.0,         state.best.value.value_or(0),
          static_cast<double>(state.best.step), state.best.mark ? 1.0 : 0.0,
          state.best.mark.value_or(0),          static_cast<double>(state.best.evaluations_since_progress)};
}

TrainState state_of(const std::vector<double>& numbers, const std::string& best_of) {
  const auto maybe = [&](std::size_t at) { return numbers[at] > 0 ? std::optional(numbers[at + 1]) : std::nullopt; };
  return {.step = static_cast<std::int64_t>(numbers[0]),
          .seconds = numbers[1],
          .best = {.of = best_of,
                   .value = maybe(2),
                   .step = static_cast<std::int64_t>(numbers[4]),
                   .mark = maybe(5),
                   .evaluations_since_progress = static_cast<std::int64_t>(numbers[7])},
          .blas = {},
          .run = {}};
}

void share(Communicator& world, std::optional<ParameterSet>& set) {
  std::int64_t is_there = set ? 1 : 0;
  broadcast(world, std::span(&is_there, 1));
  if (is_there == 0) return;
  if (!set) set.emplace();
  broadcast(world, *set);
}

void share(Communicator& world, std::optional<Checkpoint>& checkpoint, const std::string& best_of) {
  std::optional<ParameterSet> arrays;
  if (checkpoint) arrays = std::move(checkpoint->arrays);
  share(world, arrays);
  if (!arrays) return;
  std::vector<double> numbers = numbers_of(checkpoint ? checkpoint->state : TrainState{});
  broadcast(world, numbers);
  if (!checkpoint) checkpoint = Checkpoint{.state = state_of(numbers, best_of), .arrays = {}};
  checkpoint->arrays = std::move(*arrays);
}

// Of "replica/12/hidden.weight"; nothing of other names.
std::optional<std::pair<std::int64_t, std::string>> replica_and_name(const std::string& name) {
  constexpr std::string_view kPrefix = "replica/";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t replica = 0;
  const char* end = name.data() + name.size();
  const auto [slash, error] = std::from_chars(name.data() + kPrefix.size(), end, replica);
  if (error != std::errc() || slash == end || *slash != '/') return std::nullopt;
  return std::pair(replica, std::string(slash + 1, end));
}

// Arrays of replicas that there are no more.
bool has_more_replicas(const ParameterSet& arrays, const Run& run) {
  if (std::holds_alternative<strategy::Custom>(run.graph.effective_strategy())) return false;  // that is its affair
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const std::int64_t replicas = parallel == nullptr ? 1 : parallel->num_replicas;
  return std::ranges::any_of(arrays, [&](const NamedArray& array) {
    const auto its = replica_and_name(array.name());
    return its && its->first >= replicas;
  });
}

// So that what all have learnt stays, though some are no more.
void begin_with_mean(ParameterSet& arrays, const Run& run) {
  const std::function<bool(const std::string&)> stays = private_names(run.graph);
  std::set<std::string> names = trained_names(run.graph);
  std::erase_if(names, [&](const std::string& name) { return stays && stays(name); });
  const ParameterSet& saved = arrays;
  for (NamedArray& array : arrays) {
    const auto its = replica_and_name(array.name());
    const NamedArray* mean = its && names.contains(its->second) ? saved.find(its->second) : nullptr;
    if (mean != nullptr && mean->shape() == array.shape() && mean->type() == array.type())
      std::ranges::copy(mean->bytes(), array.bytes().begin());
  }
}

// What a coordinator keeps means nothing to another one, or to a strategy of tutti.
void refuse_other_coordinator(const Json& before, const Run& run) {
  const auto* custom = std::get_if<strategy::Custom>(&run.graph.effective_strategy());
  const Json strategy = before.is_object() ? before.value("graph", Json::object()).value("strategy", Json()) : Json();
  const bool was_custom = strategy.is_object() && strategy.value("type", Json()) == "Custom";
  const Json was = was_custom ? strategy.value("coordinator", Json()) : Json();
  if (was == (custom == nullptr ? Json() : Json(custom->coordinator))) return;
  const auto in_words = [](const Json& coordinator) {
    return coordinator.is_null() ? "a strategy of tutti's own" : fmt::format("the coordinator {}", coordinator.dump());
  };
  throw UsageError(fmt::format("the checkpoint is of {}, and this is {}; --from begins with its weights", in_words(was),
                               to_string(run.graph.effective_strategy())));
}

// What kinds of asynchronous runs keep between steps.
enum class AsynchronousKind { none, versioned, lock_free, gossip };

AsynchronousKind kind_of(const Run& run) {
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  if (parallel == nullptr || goes_in_step(*parallel)) return AsynchronousKind::none;
  const auto* server = std::get_if<strategy::ParameterServer>(&parallel->aggregation);
  if (server == nullptr) return AsynchronousKind::gossip;
  return server->consistency == strategy::Consistency::lock_free ? AsynchronousKind::lock_free
                                                                 : AsynchronousKind::versioned;
}

AsynchronousKind kind_of(const ParameterSet& arrays) {
  if (arrays.find("asynchronous/batches") == nullptr) return AsynchronousKind::none;
  if (arrays.find("server/clocks") != nullptr) return AsynchronousKind::versioned;
  const bool has_replicas =
      std::ranges::any_of(arrays, [](const NamedArray& array) { return replica_and_name(array.name()).has_value(); });
  return has_replicas ? AsynchronousKind::gossip : AsynchronousKind::lock_free;
}

std::string_view in_words(AsynchronousKind kind) {
  switch (kind) {
    case AsynchronousKind::none: return "replicas that take their steps together";
    case AsynchronousKind::versioned:
      return "a parameter server with versions (consistency asynchronous or bounded_staleness)";
    case AsynchronousKind::lock_free: return "parameters that all share without versions (consistency lock_free)";
    case AsynchronousKind::gossip: return "replicas that gossip (Decentralized)";
  }
  return "";
}

// Rows are taken ahead of its steps, and what the optimizer remembers is the server's, or each replica's.
void refuse_other_kind(const ParameterSet& arrays, const Run& run) {
  const AsynchronousKind was = kind_of(arrays);
  const AsynchronousKind is = kind_of(run);
  if (was == is) return;
  if (is == AsynchronousKind::none)
    throw UsageError(fmt::format(
        "the checkpoint is of replicas that do not wait for each other, and this is {}; --from begins with its weights",
        to_string(run.graph.effective_strategy())));
  throw UsageError(fmt::format("the checkpoint is of {}, and this is {}; --from begins with its weights", in_words(was),
                               to_string(run.graph.effective_strategy())));
}

void compare_with_checkpoint(Training& training) {
  TrainState& state = training.checkpoint->state;
  const Run& run = *training.run;
  std::vector<std::string> changes;
  const Json before = Json::parse(state.run, nullptr, /*allow_exceptions=*/false);
  if (before.is_object()) changes = changes_since(before, *run.resolved);
  if (!changes.empty())
    training.warnings.push_back(
        fmt::format("the run file has changed since the checkpoint was written: {}", fmt::join(changes, ", ")));
  const auto length_of = [](const Json& its) {
    const Json train = its.value("train", Json::object());
    const Json strategy = its.value("graph", Json::object()).value("strategy", Json::object());
    return std::tuple(train.value("epochs", Json()), train.value("steps", Json()), strategy.value("rounds", Json()));
  };
  const bool depends_on_length = !std::holds_alternative<schedule::Constant>(run.schedule.kind) &&
                                 !std::holds_alternative<schedule::Step>(run.schedule.kind);
  if (depends_on_length && before.is_object() && length_of(before) != length_of(*run.resolved)) {
    training.warnings.emplace_back(
        "the run is longer or shorter than when the checkpoint was written: the schedule of the learning rate is "
        "stretched to it");
  }
  refuse_other_coordinator(before, run);
  // Its steps are rounds.
  if (training.checkpoint->arrays.find("server/counts") != nullptr &&
      !std::holds_alternative<strategy::Federated>(run.graph.effective_strategy()))
    throw UsageError(fmt::format("the checkpoint is of a federated run, and this is {}; --from begins with its weights",
                                 name_of(run.graph.effective_strategy())));
  refuse_other_kind(training.checkpoint->arrays, run);
  if (state.best.of != training.best_of()) {
    if (state.best.value)
      training.warnings.push_back(fmt::format("the best was told by the {} before, and is told by the {} from now on",
                                              state.best.of, training.best_of()));
    state.best = {.of = training.best_of()};
  }
  if (has_more_replicas(training.checkpoint->arrays, run) && has_replica_mixer(run)) {
    begin_with_mean(training.checkpoint->arrays, run);
    training.warnings.emplace_back(
        "the checkpoint is of more replicas than there are: all begin with the mean of them");
  } else if (has_more_replicas(training.checkpoint->arrays, run)) {
    training.warnings.emplace_back(
        "the checkpoint has private parameters of more replicas than there are: those of the last ones are left out");
  }
  const std::string& kernels = set_up_blas().kernels;
  if (state.blas != kernels) {
    training.warnings.push_back(
        fmt::format("the checkpoint was written with the BLAS kernels {}, and these are {}: the bits may be others",
                    state.blas, kernels));
  }
}

void read_weights_of(Training& training) {
  const std::filesystem::path& file = training.options.from;
  if (training.checkpoint) {
    training.warnings.push_back(fmt::format("{} is not used: the run goes on from its last checkpoint", file.string()));
    return;
  }
  if (!std::filesystem::exists(file)) throw UsageError(fmt::format("--from {}: there is no such file", file.string()));
  training.weights = weights_in(file);
}

void read_checkpoint_of(Training& training) {
  const Run& run = *training.run;
  if (!std::filesystem::exists(run.output)) {
    training.warnings.push_back(fmt::format("there is nothing to resume in {}: beginning", run.output));
    return;
  }
  training.folder.emplace(run.output);
  // Its steps are generations.
  if (std::filesystem::exists(training.folder->path() / "population.jsonl"))
    throw UsageError(fmt::format("{} has a population, and this is {}; --from begins with its best weights, {}",
                                 run.output, name_of(run.graph.effective_strategy()),
                                 (training.folder->checkpoints() / "best.safetensors").string()));
  training.checkpoint = CheckpointFolder(training.folder->checkpoints(), run.checkpoints).read_last(training.warnings);
  if (training.checkpoint) {
    compare_with_checkpoint(training);
  } else {
    training.warnings.push_back(fmt::format("there is no checkpoint to resume in {}: beginning", run.output));
  }
}

}  // namespace

std::unique_ptr<Stepper> make_stepper(const Training& training) {
  const MakeStepper make = find_stepper(*training.run);
  TUTTI_ASSERT(make != nullptr);
  return make(training);
}

bool Training::is_judged_by_clients() const {
  const bool has_server_rows = data.validation || data.test;
  return run->data.client_test > 0 && (!has_server_rows || private_names(run->graph) != nullptr);
}

std::string Training::best_of() const {
  if (is_judged_by_clients()) return "clients " + run->train.best_by;
  if (!data.validation && !data.test) return "";
  return fmt::format("{} {}", data.validation ? "validation" : "test", run->train.best_by);
}

std::shared_ptr<GraphModule> made_net(const Run& run, const std::optional<ParameterSet>& weights,
                                      const std::filesystem::path& from) {
  auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  if (!weights) return net;
  try {
    fill_module(*weights, *net);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{} has not the weights of this graph: {}", from.string(), error.what()));
  }
  return net;
}

void start(Training& training, const Description& description) {
  const Run& run = *training.run;
  if (training.speaks()) {
    if (!training.folder) training.folder.emplace(run.output);
    if (!training.checkpoint && !training.goes_on) {
      const std::optional<DataStoreFolder> store = data_store_of(run);
      if (const auto aside = training.folder->begin_anew(store ? std::optional(store->path) : std::nullopt))
        training.warnings.push_back(
            fmt::format("{} had an earlier run in it, which is now {}", run.output, aside->string()));
    }
    if (training.first_step() < training.steps)
      write_file(training.folder->path() / "run.json", run.resolved->dump(2) + "\n");
  }
  if (training.options.world != nullptr) barrier(*training.options.world);
  training.began = std::chrono::steady_clock::now();
  if (!training.speaks()) return;
  training.events.tell(event::RunStarted{
      .output = run.output,
      .strategy = to_string(run.graph.effective_strategy()),
      .engine = description.engine + training.found_cut,
      .notes = description.notes,
      .unit = unit_of(run),
      .first_step = training.first_step(),
      .first_seconds = training.checkpoint ? training.checkpoint->state.seconds : training.seconds_before,
      .steps = training.steps,
      .steps_per_epoch = training.steps_per_epoch,
      .rows_per_step = unit_of(run) == "step" ? run.data.batch_size : 0});
  for (const std::string& warning : training.warnings) training.events.tell(event::Warned{warning});
  for (const std::string& warning : description.warnings) training.events.tell(event::Warned{warning});
}

}  // namespace detail

std::optional<std::string> why_not_trainable(const Run& run, int processes) {
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (const auto* custom = std::get_if<strategy::Custom>(&strategy)) {
    if (!run.coordinator.make)
      return fmt::format("the coordinator '{}' was not there when the run was read", custom->coordinator);
    if (processes > 1 && !run.coordinator.uses_world)
      return fmt::format("the coordinator '{}' is for one process, and there are {}", custom->coordinator, processes);
  }
  if (processes > 1 && std::holds_alternative<strategy::Local>(strategy)) {
    return fmt::format(
        "the strategy Local is for one process, and there are {}; DataParallel spreads replicas over processes",
        processes);
  }
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  if (parallel != nullptr && parallel->num_replicas < processes)
    return fmt::format("num_replicas: expected at least one for each of {} processes, found {}", processes,
                       parallel->num_replicas);
  if (detail::is_asynchronous(strategy)) {
    if (const std::optional<std::string> why = detail::why_not_asynchronous(run)) return why;
  }
  if (std::holds_alternative<strategy::ModelParallel>(strategy)) {
    for (const Subgraph& subgraph : run.graph.subgraphs()) {
      if (subgraph.strategy && std::holds_alternative<strategy::Local>(*subgraph.strategy))
        return fmt::format("the subgraph '{}': nothing carries Local within a replicated stage out yet", subgraph.path);
      const auto* stage = subgraph.strategy ? std::get_if<strategy::DataParallel>(&*subgraph.strategy) : nullptr;
      if (stage != nullptr && !detail::is_bare(*stage))
        return fmt::format("the subgraph '{}': inside ModelParallel, expected a plain AllReduce in each step, found {}",
                           subgraph.path, to_string(*subgraph.strategy));
    }
  }
  if (const auto* federated = std::get_if<strategy::Federated>(&strategy)) {
    if (processes > 1)
      return fmt::format("the clients of Federated are simulated by one process, and there are {}", processes);
    if (!detail::is_plain(federated->inner))
      return fmt::format("inner: replicas of a client average gradients in each step by AllReduce, found {}",
                         to_string(TrainingStrategy(std::get<strategy::DataParallel>(federated->inner))));
  }
  if (const auto* population = std::get_if<strategy::PopulationBased>(&strategy)) {
    if (population->population_size < processes)
      return fmt::format("population_size: expected at least one for each of {} processes, found {}", processes,
                         population->population_size);
    const auto* inner = std::get_if<strategy::DataParallel>(&population->inner);
    const std::int64_t replicas = inner == nullptr ? 1 : inner->num_replicas;
    if (population->threads > 0 && population->threads < processes * replicas)
      return fmt::format("threads: expected at least {} for each of {} process{}, found {}",
                         replicas == 1 ? "one" : fmt::format("the {} of a member", replicas), processes,
                         processes == 1 ? "" : "es", population->threads);
    if (!detail::is_plain(population->inner))
      return fmt::format("inner: replicas of a member average gradients in each step by AllReduce, found {}",
                         to_string(TrainingStrategy(*inner)));
  }
  const auto workers = static_cast<int>(run.workers.size());
  if (std::holds_alternative<strategy::ModelParallel>(strategy) && processes > 1 && processes != workers) {
    return fmt::format("expected a process for each of {} workers, or one for all of them, found {}", workers,
                       processes);
  }
  return std::nullopt;
}

bool bits_depend_on_timing(const Run& run) {
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (const auto* population = std::get_if<strategy::PopulationBased>(&strategy))
    return population->pace == strategy::Pace::asynchronous;
  return detail::is_asynchronous(strategy) && std::get<strategy::DataParallel>(strategy).num_replicas > 1;
}

namespace detail {
namespace {

// "; found: w0 has flat, hidden1; w1 has act1"
std::string tell_partitions(const Run& run) {
  constexpr std::size_t kMostNames = 8;
  std::vector<std::string> parts;
  for (const strategy::Partition& one : std::get<strategy::ModelParallel>(run.graph.effective_strategy()).partitions) {
    const std::vector<std::string>& ids = one.node_ids;
    parts.push_back(fmt::format(
        "{} has {}", std::get<strategy::WorkerId>(one.target).id,
        ids.size() > kMostNames ? fmt::format("{} nodes", ids.size()) : fmt::format("{}", fmt::join(ids, ", "))));
  }
  return fmt::format("; found: {}", fmt::join(parts, "; "));
}

// Found by rank 0, where they have to be found, and told to the others.
std::shared_ptr<const Run> with_partitions(const Run& run, const DataSplits& data, Communicator* world) {
  if (!wants_partitions(run)) return std::make_shared<const Run>(run);
  constexpr std::chrono::minutes kMeasuring{10};
  NodeCosts costs;
  if (world == nullptr || world->rank() == Rank{0}) costs = measure_node_costs(run, *data.train);
  if (world != nullptr) {
    std::vector<double> numbers{static_cast<double>(costs.rows), costs.update_of_element};
    for (const NodeCost& cost : costs.nodes) numbers.insert(numbers.end(), {cost.forward, cost.backward});
    numbers.resize(2 + 2 * run.graph.nodes().size());
    broadcast(*world, std::span(numbers), {.deadline = kMeasuring});
    costs = {.rows = static_cast<std::int64_t>(numbers[0]), .nodes = {}, .update_of_element = numbers[1]};
    for (std::size_t i = 2; i < numbers.size(); i += 2) costs.nodes.push_back({numbers[i], numbers[i + 1]});
  }
  return std::make_shared<const Run>(with_found_partitions(run, costs));
}

// Replicas that take steps by themselves to the end of the run: nothing of that goes through the outer rule.
std::optional<std::string> tell_steps_alone(const Run& run, std::int64_t steps) {
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  if (parallel == nullptr) return std::nullopt;
  const std::int64_t every = parallel->sync_every * run.train.accumulate;
  const std::int64_t rest = steps % every;
  if (parallel->sync_every == 1 || rest == 0) return std::nullopt;
  return fmt::format("replicas meet every {} steps: {}, and what is kept is their mean", every,
                     steps < every ? fmt::format("in {} they never do", steps)
                                   : fmt::format("the last {} of {} they take alone", rest, steps));
}

// Who is to stop where it gets no better has to hear how good it is.
void refuse_to_stop_unseen(const Training& training) {
  if (!training.run->train.early_stopping || !training.best_of().empty()) return;
  const bool has_clients = std::holds_alternative<strategy::Federated>(training.run->graph.effective_strategy());
  throw UsageError(fmt::format(
      "train.early_stopping: nothing is ever evaluated, because the data has no rows to validate or to test with{}",
      has_clients ? ", and clients keep none for that (data.client_test)" : ""));
}

TrainResult train_here(const Run& run, const Events& events, const TrainOptions& options) {
  if (const auto why = why_not_trainable(run, options.world == nullptr ? 1 : options.world->size()))
    throw UsageError(*why);
  if (options.world != nullptr) refuse_other_runs(*options.world, run);
  DataSplits data = open_data(run);
  Training training{
      .run = with_partitions(run, data, options.world), .data = std::move(data), .events = events, .options = options};
  refuse_to_stop_unseen(training);
  training.warnings = training.run->warnings;
  if (wants_partitions(run)) training.found_cut = tell_partitions(*training.run);
  training.steps_per_epoch = unit_of(run) == "step" ? steps_per_epoch(run, training.data.train->size()) : 1;
  training.steps = all_steps_of(run, training.data, training.steps_per_epoch);
  training.result.steps = training.steps;
  training.result.unit = unit_of(run);
  if (const std::int64_t rest = training.steps % run.train.accumulate; rest != 0 && !is_population(run))
    training.warnings.push_back(fmt::format("{} steps go into an update, so that the last {} of {} go into none",
                                            run.train.accumulate, rest, training.steps));
  if (const auto warning = tell_steps_alone(run, training.steps)) training.warnings.push_back(*warning);
  if (training.speaks()) {
    if (options.resume && !is_population(run)) read_checkpoint_of(training);
    if (!options.from.empty()) read_weights_of(training);
  }
  if (options.world != nullptr) {
    share(*options.world, training.checkpoint, training.best_of());
    share(*options.world, training.weights);
  }
  find_fit(run)(training);
  if (training.speaks())
    events.tell(event::RunEnded{
        .reason = training.result.reason, .step = training.result.step, .seconds = training.result.seconds});
  return training.result;
}

// What is no std::exception is a user's, and would end programs that know of these alone.
TrainResult train_or_tell(const Run& run, const Events& events, const TrainOptions& options) {
  try {
    return train_here(run, events, options);
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw Error("what was thrown is no std::exception");
  }
}

}  // namespace
}  // namespace detail

TrainResult train(const Run& run, const Events& events, const TrainOptions& options) {
  if (options.world == nullptr) return detail::train_or_tell(run, events, options);
  // Who fails alone says so to the others, and to whoever started it; these end, and leave the telling to it.
  try {
    return detail::train_or_tell(run, events, options);
  } catch (const PeerError& error) {
    if (error.kind() == FailureKind::cancelled) throw ToldElsewhere(error.what());
    throw;
  } catch (const ToldElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    if (!options.world->broken()) options.world->cancel(error.what());
    // Misuse is what all processes see, and the first tells. This is one's own.
    if (options.world->rank() != Rank{0}) throw Error(error.what());
    throw;
  }
}

}  // namespace tutti
