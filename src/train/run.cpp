#include <tutti/train/run.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <new>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/nearest_name.hpp>
#include <tutti/coordinate/federated_rounds.hpp>
#include <tutti/train/data_store.hpp>

#include "run_values.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kMostRows = 1'000'000'000;

// What users' functions refuse is told at the place that it is about.
template <typename F>
auto told_at(const JsonValue& place, F f) {
  try {
    return f();
  } catch (const UsageError& error) {
    throw place.placed(error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = error.what();  // of libtorch's, with a trace behind it
    throw place.error(why.substr(0, why.find('\n')));
  } catch (...) {
    throw place.error("what was thrown is no std::exception");
  }
}

void refuse_unless_whole(const JsonValue& place, bool has_function, std::string_view what) {
  if (!has_function) throw place.error(fmt::format("it was made without the function '{}'", what));
}

// A name alone, or an object with a name and options.
std::string name_in(const JsonValue& value) {
  if (!value.is_string() && !value.is_object()) throw value.expected("a name, or an object with a name and options");
  return value.is_string() ? value.string() : value.at("name").string();
}

std::optional<std::string> own_name(const Options& options) {
  const std::optional<JsonValue> as = options.find("as");
  if (!as) return std::nullopt;
  told_at(*as, [&] { detail::refuse_unless_name("as", as->string()); });
  return as->string();
}

template <typename Type>
auto resolve_named(const NamedTypes<Type>& types, const Options& options, const ValueSpec& output,
                   const DataDescription& data) {
  const JsonValue& value = options.object();
  const Type& type = types.at(value.is_string() ? value : options.at("name"));
  auto result = told_at(value, [&] { return type.resolve(options, output, data); });
  options.refuse_other_keys({"name"});
  return result;
}

// Each is told by its name, or by the one that "as" gives it.
std::vector<RunMetric> read_metrics(const JsonValue& list, const MetricRegistry& registry, const ValueSpec& output,
                                    const DataDescription& data) {
  std::vector<RunMetric> metrics;
  for (const JsonValue& value : list.elements()) {
    const std::string type = name_in(value);
    const Options options(value);
    std::string name = own_name(options).value_or(type);
    Metric metric = resolve_named(registry, options, output, data);
    refuse_unless_whole(value, metric.measure != nullptr, "measure");
    if (std::ranges::find(metrics, name, &RunMetric::name) != metrics.end())
      throw value.error(fmt::format("the metric '{}' is there twice; \"as\" gives one of them another name", name));
    metrics.push_back({std::move(name), std::move(metric)});
  }
  return metrics;
}

// Inputs go by their names; where there is one of each, it is the same whatever its name.
std::vector<std::size_t> match_inputs(const JsonValue& inputs, const Graph& graph, const DataDescription& data) {
  std::vector<std::size_t> order;
  for (const GraphInput& input : graph.inputs()) {
    const JsonValue place = inputs.at(input.name);
    auto found = std::ranges::find(data.inputs, input.name, [](const auto& its) { return its.first; });
    if (found == data.inputs.end() && graph.inputs().size() == 1 && data.inputs.size() == 1)
      found = data.inputs.begin();
    if (found == data.inputs.end()) {
      std::vector<std::string> names;
      for (const auto& [name, spec] : data.inputs) names.push_back(name);
      throw place.error(fmt::format("the data has no '{}'; it has {}", input.name, fmt::join(names, ", ")));
    }
    if (found->second != input.spec) {
      throw place.error(
          fmt::format("the data has rows of {}, found {}", to_string(found->second), to_string(input.spec)));
    }
    order.push_back(static_cast<std::size_t>(found - data.inputs.begin()));
  }
  return order;
}

// Nodes whose parameters the loss, which is of the first output, does not depend on.
void warn_of_what_is_not_trained(const Graph& graph, std::vector<std::string>& warnings) {
  const std::vector<bool> is_reached = nodes_before_loss(graph);
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    const bool has_free = std::ranges::any_of(
        node.parameters, [&](std::size_t parameter) { return !graph.parameters()[parameter].is_frozen; });
    if (!is_reached[i] && has_free)
      warnings.push_back(fmt::format("the node '{}' is computed and not trained: the loss is of the first output, '{}'",
                                     node.path, graph.outputs().front().name));
  }
}

// What a pipeline computes otherwise than one worker would.
void warn_of_micro_batches(const Graph& graph, std::vector<std::string>& warnings) {
  const auto* cut = std::get_if<strategy::ModelParallel>(&graph.effective_strategy());
  if (cut == nullptr) return;
  const auto* pipeline = std::get_if<strategy::Pipeline>(&cut->communication);
  for (const GraphNode& node : graph.nodes()) {
    const auto* replicated = std::get_if<strategy::DataParallel>(&graph.effective_strategy(node.path));
    if (node.op != "batch_norm" || (pipeline == nullptr && replicated == nullptr)) continue;
    const std::string rows =
        pipeline == nullptr ? "a batch" : fmt::format("the {} rows of a micro-batch", pipeline->micro_batch_size);
    warnings.push_back(fmt::format("the node '{}' (batch_norm) takes its statistics over {}{}", node.path,
                                   replicated == nullptr ? "" : "a replica's share of ", rows));
  }
}

// What tells the best evaluation: the loss, or one of the metrics.
std::string read_best_by(const Options& options, const std::vector<RunMetric>& metrics) {
  std::vector<std::string> names{"loss"};
  for (const RunMetric& metric : metrics) names.push_back(metric.name);
  const std::optional<JsonValue> value = options.find("best_by");
  return value ? value->one_of(names) : names[names.size() > 1 ? 1 : 0];
}

EarlyStopping read_early_stopping(const JsonValue& value) {
  if (!value.is_object()) throw value.expected(R"(an object, as in {"patience": 3, "min_change": 0.001})");
  const Options options(value);
  EarlyStopping stopping;
  stopping.patience = options.integer("patience", {.min = 1, .max = kMostRows});
  stopping.min_change = options.number("min_change", {.min = 0}, stopping.min_change);
  options.refuse_other_keys({});
  return stopping;
}

RunCheckpoints read_checkpoints(const JsonValue& value) {
  if (!value.is_object()) throw value.expected(R"(an object, as in {"every": 100, "keep_last": 2})");
  const Options options(value);
  RunCheckpoints checkpoints;
  checkpoints.every = options.integer("every", {.min = 0}, checkpoints.every);
  checkpoints.keep_last = options.integer("keep_last", {.min = 1, .max = kMostRows}, checkpoints.keep_last);
  checkpoints.keep_best = options.boolean("keep_best", checkpoints.keep_best);
  options.refuse_other_keys({});
  return checkpoints;
}

// What says how long a run is.
enum class Length { epochs, rounds, generations, phases };

RunTrain read_train(const JsonValue& value, const std::vector<RunMetric>& metrics, Length length) {
  const Options options(value);
  RunTrain train;
  const auto refuse = [&](std::initializer_list<const char*> keys, const char* why) {
    for (const char* key : keys) {
      if (const auto its = options.find(key)) throw its->error(why);
    }
  };
  if (length == Length::rounds) {
    refuse({"epochs", "steps", "accumulate"},
           "the run is as long as the strategy has rounds, and \"local\" there says what a client does");
    train.log_every = 1;
  }
  if (length == Length::generations) {
    refuse({"epochs", "steps"},
           "the run is as long as the strategy has generations, and \"generation\" there says how long one is");
    refuse({"early_stopping"}, "members are trained for all generations");
    train.log_every = 1;
  }
  if (length == Length::phases) refuse({"epochs", "steps"}, "the run is as long as its phases");
  train.evaluate_every = options.integer("evaluate_every", {.min = 0}, train.evaluate_every);
  if (length == Length::generations && train.evaluate_every > 0)
    refuse({"evaluate_every"}, "members are evaluated at the end of each generation");
  train.log_every = options.integer("log_every", {.min = 1}, train.log_every);
  train.best_by = read_best_by(options, metrics);
  if (const auto stopping = options.find("early_stopping")) train.early_stopping = read_early_stopping(*stopping);
  if (const auto epochs = options.find("epochs")) train.epochs = epochs->integer({.min = 1, .max = kMostRows});
  if (const auto steps = options.find("steps")) train.steps = steps->integer({.min = 1});
  train.clip_norm = options.number("clip_norm", {.min = 0}, 0);
  train.accumulate = options.integer("accumulate", {.min = 1, .max = kMostRows}, 1);
  if (const auto deadline = options.find("deadline")) {
    constexpr double kMostSeconds = 1e6;
    train.deadline = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(deadline->number({.min = 0.001, .max = kMostSeconds})));
  }
  options.refuse_other_keys({});
  if (!train.steps && !train.epochs && length == Length::epochs) train.epochs = 1;
  return train;
}

nlohmann::ordered_json to_json(const RunTrain& train, Length length) {
  nlohmann::ordered_json json;
  if (train.epochs) json["epochs"] = *train.epochs;
  if (train.steps) json["steps"] = *train.steps;
  json["clip_norm"] = train.clip_norm;
  if (length != Length::rounds) json["accumulate"] = train.accumulate;
  json["evaluate_every"] = train.evaluate_every;
  json["log_every"] = train.log_every;
  json["best_by"] = train.best_by;
  json["deadline"] = std::chrono::duration<double>(train.deadline).count();
  if (train.early_stopping)
    json["early_stopping"] = {{"patience", train.early_stopping->patience},
                              {"min_change", train.early_stopping->min_change}};
  return json;
}

nlohmann::ordered_json to_json(const DataOptions& options, nlohmann::ordered_json data) {
  data["split"] = {
      {"test", options.split.test}, {"validation", options.split.validation}, {"shuffle", options.split.shuffle}};
  data["standardise"] = options.standardise;
  if (options.augment) data["augment"] = {{"flip", options.augment->flip}, {"shift", options.augment->shift}};
  data["shuffle"] = options.shuffle;
  data["drop_last"] = options.drop_last;
  return data;
}

Length length_of(const Graph& graph, bool has_phases) {
  if (std::holds_alternative<strategy::Federated>(graph.effective_strategy())) return Length::rounds;
  if (std::holds_alternative<strategy::PopulationBased>(graph.effective_strategy())) return Length::generations;
  return has_phases ? Length::phases : Length::epochs;
}

// Where values are set otherwise for a time, or for a member, what stands beside them stays as it was written: another
// optimizer has not the defaults of this one.
void keep_as_written(const nlohmann::ordered_json& document, const Run& run, nlohmann::ordered_json& json) {
  std::vector<std::string> paths;
  for (const SearchDimension& dimension : run.search.dimensions) paths.push_back(dimension.path);
  for (const RunPhase& phase : run.phases) {
    for (const HyperParameter& value : phase.set) paths.push_back(value.path);
  }
  for (const std::string& path : paths) {
    const std::string key = path.substr(0, path.find_first_of(".["));
    if (key != "optimizer" && key != "schedule") continue;
    json.erase(key);
    if (document.contains(key)) json[key] = document.at(key);
  }
}

nlohmann::ordered_json resolve(const nlohmann::ordered_json& document, const Run& run) {
  nlohmann::ordered_json json;
  json["seed"] = run.seed;
  json["data"] = to_json(run.data.options, document.at("data"));
  json["graph"] = document.at("graph");
  if (document.contains("workers")) json["workers"] = document.at("workers");
  if (!run.clients.empty()) {
    json["data"]["client_split"] = to_json(run.data.client_split);
    json["data"]["client_test"] = run.data.client_test;
    for (const ClientGroup& group : run.clients) json["clients"].push_back(to_json(group));
  }
  json["loss"] = document.at("loss");
  json["metrics"] = document.value("metrics", nlohmann::ordered_json::array());
  json["optimizer"] = to_json(run.optimizer);
  json["schedule"] = to_json(run.schedule);
  keep_as_written(document, run, json);
  if (!run.search.dimensions.empty()) json["search"] = to_json(run.search);
  if (!run.phases.empty()) json["phases"] = to_json(run.phases);
  json["train"] = to_json(run.train, length_of(run.graph, !run.phases.empty()));
  json["checkpoints"] = {{"every", run.checkpoints.every},
                         {"keep_last", run.checkpoints.keep_last},
                         {"keep_best", run.checkpoints.keep_best}};
  json["output"] = run.output;
  return json;
}

// Those that the file lists, or else that partitions name.
std::vector<Worker> read_workers(const JsonValue& run, const Graph& graph) {
  const auto* cut = std::get_if<strategy::ModelParallel>(&graph.effective_strategy());
  const std::optional<JsonValue> list = run.find("workers");
  const std::int64_t wanted = cut == nullptr ? 0 : cut->auto_partition.workers;
  std::vector<Worker> workers;
  if (!list && wanted > 0) {
    for (std::int64_t w = 0; w < wanted; ++w) workers.push_back({.id = fmt::format("w{}", w)});
    return workers;
  }
  if (!list) return cut == nullptr ? std::vector<Worker>() : workers_named_in(*cut);
  for (const JsonValue& value : list->elements()) {
    if (!value.is_object()) throw value.expected(R"(a worker, as in {"id": "w0", "tags": ["big"]})");
    const Options options(value);
    Worker worker{.id = options.at("id").string()};
    if (worker.id.empty()) throw options.at("id").expected("a string that is not empty");
    if (std::ranges::find(workers, worker.id, &Worker::id) != workers.end())
      throw options.at("id").error(fmt::format("the worker '{}' is there twice", worker.id));
    if (const auto tags = options.find("tags")) {
      for (const JsonValue& tag : tags->elements()) worker.tags.push_back(tag.string());
    }
    options.refuse_other_keys({});
    workers.push_back(std::move(worker));
  }
  if (workers.empty()) throw list->expected("at least one worker");
  if (wanted > std::ssize(workers)) {
    throw run.at("graph")
        .at("strategy")
        .at("auto_partition")
        .at("workers")
        .expected(fmt::format("at most the {} that the file lists", workers.size()));
  }
  return workers;
}

// What is of clients, and refused where there are none.
void read_clients(const JsonValue& value, Run& run) {
  const auto* federated = std::get_if<strategy::Federated>(&run.graph.effective_strategy());
  const JsonValue data = value.at("data");
  const auto split = data.find("client_split");
  const auto test = data.find("client_test");
  const auto list = value.find("clients");
  if (federated == nullptr) {
    for (const auto& its : {split, test, list}) {
      if (its)
        throw its->error(fmt::format("{} has no clients; Federated has", name_of(run.graph.effective_strategy())));
    }
    return;
  }
  if (split) run.data.client_split = client_split_from_json(*split);
  if (const std::int64_t files = std::max<std::int64_t>(std::ssize(run.data.opened_by.files), 1);
      std::holds_alternative<Files>(run.data.client_split) && files != federated->num_clients)
    throw split->error(fmt::format("expected a file for each of {} clients, found {}", federated->num_clients, files));
  if (test) run.data.client_test = test->number({.min = 0, .max = 1, .max_excluded = true});
  if (needs_labels(run.data.client_split) && run.data.opened_by.description.classes == 0)
    throw split->error("it looks at classes, and the target of the data is a number");
  if (list) {
    run.clients = client_groups_from_json(*list, federated->num_clients);
  } else {
    run.clients = {{.count = federated->num_clients, .is_rest = true}};
  }
  told_at(value.at("graph").at("strategy"), [&] { refuse_impossible(*federated, client_counts(run)); });
}

// A round that needs all whom it asks is repeated whenever one of them does not answer.
void warn_of_rounds_that_repeat(const Run& run, std::vector<std::string>& warnings) {
  const auto* federated = std::get_if<strategy::Federated>(&run.graph.effective_strategy());
  const auto* round = federated == nullptr ? nullptr : std::get_if<strategy::Synchronous>(&federated->round);
  if (round == nullptr) return;
  const std::int64_t chosen = chosen_count(federated->client_selection, client_counts(run));
  const bool is_bounded = std::holds_alternative<strategy::All>(federated->client_selection) ||
                          std::holds_alternative<strategy::ByCapability>(federated->client_selection);
  const std::int64_t asked = is_bounded ? chosen : std::min(client_counts(run).all, chosen + round->ask_beyond);
  const bool asks_more = asked > (round->replies > 0 ? round->replies : chosen);
  const auto may_miss = [](const ClientGroup& group) {
    return group.dropout != Distribution(Always{0}) || group.failure != Distribution(Always{0});
  };
  const bool may_refuse = federated->max_update_norm > 0;
  if (asks_more || (std::ranges::none_of(run.clients, may_miss) && round->deadline == 0 && !may_refuse)) return;
  warnings.push_back(fmt::format(
      "a round needs the updates of all clients that it asks, and {}: {}; the strategy's \"round\" can say how many "
      "\"replies\" are enough, or how many to \"ask_beyond\"",
      round->deadline > 0 ? "its deadline may leave some out"
      : may_refuse        ? "max_update_norm may refuse some"
                          : "some may drop out or fail",
      round->too_few == strategy::TooFew::end ? "that ends the run" : "such rounds are repeated"));
}

// Each step takes a client so far towards the server's model; beyond it, and farther away, where that is too much.
void warn_of_a_pull_too_strong(const Run& run, std::vector<std::string>& warnings) {
  const auto* federated = std::get_if<strategy::Federated>(&run.graph.effective_strategy());
  const auto* proximal = federated == nullptr ? nullptr : std::get_if<strategy::FedProx>(&federated->aggregation);
  if (proximal == nullptr) return;
  for (const ClientGroup& group : run.clients) {
    const auto* sgd = std::get_if<Sgd>(&(group.optimizer ? *group.optimizer : run.optimizer));
    if (sgd == nullptr || sgd->lr * proximal->mu < 2) continue;
    warnings.push_back(fmt::format(
        "FedProx: with a learning rate of {:.6g} and mu {:.6g} each step goes beyond the server's model, farther away "
        "than before: expected their product to be below 2",
        sgd->lr, proximal->mu));
    return;
  }
}

// The run has files of its own there.
void refuse_taken_folder(const JsonValue& strategy, const DataStoreFolder& store, const std::filesystem::path& output) {
  const auto whole = [](const std::filesystem::path& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path) / "");
  };
  const std::filesystem::path within = whole(store.path).lexically_relative(whole(output));
  const std::filesystem::path first = within.empty() ? std::filesystem::path() : *within.begin();
  if (first != "." && first != "checkpoints") return;
  throw strategy.at("communication")
      .at("path")
      .error(fmt::format("expected a folder of its own, found {}",
                         first == "." ? "the output folder" : "that of the checkpoints, or one in it"));
}

// The replicas that train a batch, of the run or of each of its clients or members.
std::int64_t replicas_of_a_batch(const TrainingStrategy& strategy) {
  const strategy::DataParallel* parallel = std::get_if<strategy::DataParallel>(&strategy);
  if (const auto* federated = std::get_if<strategy::Federated>(&strategy))
    parallel = std::get_if<strategy::DataParallel>(&federated->inner);
  if (const auto* population = std::get_if<strategy::PopulationBased>(&strategy))
    parallel = std::get_if<strategy::DataParallel>(&population->inner);
  return parallel == nullptr ? 1 : parallel->num_replicas;
}

void refuse_more_replicas_than_rows(const JsonValue& value, const Run& run) {
  const std::int64_t replicas = replicas_of_a_batch(run.graph.effective_strategy());
  const auto check = [&](const JsonValue& place, std::int64_t rows) {
    if (replicas > rows)
      throw place.error(fmt::format("expected a row for each of {} replicas, found {}", replicas, rows));
  };
  check(value.at("data").at("batch_size"), run.data.batch_size);
  for (std::size_t group = 0; group < run.clients.size(); ++group) {
    if (run.clients[group].batch_size)
      check(value.at("clients").elements()[group].at("batch_size"), *run.clients[group].batch_size);
  }
}

// What a strategy wants of the rest.
void check_strategy(const JsonValue& value, const Run& run) {
  const std::int64_t rows = run.data.batch_size;
  const JsonValue place = value.at("data").at("batch_size");
  refuse_more_replicas_than_rows(value, run);
  if (const auto* parallel = std::get_if<strategy::ModelParallel>(&run.graph.effective_strategy())) {
    const auto* pipeline = std::get_if<strategy::Pipeline>(&parallel->communication);
    if (pipeline != nullptr && pipeline->micro_batch_size > rows)
      throw place.error(
          fmt::format("expected the {} rows of a micro-batch, found {}", pipeline->micro_batch_size, rows));
    const JsonValue strategy = value.at("graph").at("strategy");
    if (const std::optional<DataStoreFolder> store = data_store_of(run))
      refuse_taken_folder(strategy, *store, run.output);
    told_at(strategy, [&] { (void)cut_graph(run.graph, *parallel, run.workers); });
    for (const Subgraph& subgraph : run.graph.subgraphs()) {
      if (parallel->auto_partition.workers == 0 || subgraph.path.empty() || !subgraph.strategy) continue;
      throw strategy.at("auto_partition")
          .error(fmt::format("the subgraph '{}' has a strategy of its own, so that its place has to be named: expected "
                             "partitions",
                             subgraph.path));
    }
    if (run.graph.outputs().front().value < run.graph.inputs().size())
      throw strategy.error("the first output is an input of the graph, so there is nothing to train");
  }
}

}  // namespace

ClientCounts client_counts(const Run& run) {
  const auto* federated = std::get_if<strategy::Federated>(&run.graph.effective_strategy());
  ClientCounts counts;
  for (const ClientGroup& group : run.clients) {
    counts.all += group.count;
    if (federated == nullptr || has_tags(federated->client_selection, group.tags)) counts.with_tags += group.count;
  }
  return counts;
}

namespace {

void read_search(const JsonValue& value, Run& run) {
  const std::optional<JsonValue> search = value.find("search");
  const auto* population = std::get_if<strategy::PopulationBased>(&run.graph.effective_strategy());
  if (population == nullptr) {
    if (search)
      throw search->error(
          fmt::format("{} searches nothing; PopulationBased does", name_of(run.graph.effective_strategy())));
    return;
  }
  if (!search)
    throw value.at("graph")
        .at("strategy")
        .error(
            R"(there is nothing to search; expected a key "search" in the run file, as in {"optimizer.lr": {"float": [0.001, 1], "scale": "log"}})");
  run.search = search_space_from_json(*search);
  if (run.data.options.split.validation == 0 && !run.data.opened_by.has_validation)
    throw value.at("data").error(
        R"(members are compared by rows for validation, and there are none; expected them, as in "split": {"validation": 0.1})");
  detail::refuse_impossible_search(*search, run);
}

UsageError unknown_coordinator(const JsonValue& name, const std::vector<std::string>& known) {
  constexpr const char* kWhence = "--plugin names a library that brings one, and a program adds it to its registry";
  if (known.empty())
    return name.error(
        fmt::format("there is no coordinator '{}', nor any other: tutti has none of its own; {} (docs/custom.md)",
                    name.string(), kWhence));
  const std::optional<std::string> nearest = nearest_name(name.string(), known);
  return name.error(fmt::format("there is no coordinator '{}'; {}expected one of {}; {} (docs/custom.md)",
                                name.string(), nearest ? fmt::format("did you mean '{}'? ", *nearest) : "",
                                fmt::join(known, ", "), kWhence));
}

void read_coordinator(const JsonValue& value, const CoordinatorRegistry& registry, Run& run) {
  if (!std::holds_alternative<strategy::Custom>(run.graph.effective_strategy())) return;
  const JsonValue strategy = value.at("graph").at("strategy");
  const JsonValue name = strategy.at("coordinator");
  const CoordinatorType* type = registry.find(name.string());
  if (type == nullptr) throw unknown_coordinator(name, registry.names());
  const std::optional<JsonValue> config = strategy.find("config");
  const JsonDocument nothing = JsonDocument::parse("{}", "config");
  const Options options(config ? *config : nothing.root());
  run.coordinator = told_at(config ? *config : strategy, [&] { return type->resolve(options, run); });
  if (options.object().is_object()) options.refuse_other_keys({});
  refuse_unless_whole(name, run.coordinator.make != nullptr, "make");
}

void read_phases(const JsonValue& value, Run& run) {
  const std::optional<JsonValue> list = value.find("phases");
  if (!list) return;
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (!std::holds_alternative<strategy::Local>(strategy) && !std::holds_alternative<strategy::DataParallel>(strategy))
    throw list->error(fmt::format("{} has no phases; Local and DataParallel may have", name_of(strategy)));
  run.phases = phases_from_json(*list);
  for (std::size_t i = 0; i < run.phases.size(); ++i) {
    const JsonValue place = list->element(i);
    for (const HyperParameter& value_set : run.phases[i].set) {
      if (!detail::may_change_between_phases(value_set.path))
        throw place.at("set").at(value_set.path).error("a phase cannot set this: it belongs to the run as a whole");
    }
    const Run phase = [&] {
      try {
        return detail::run_of_phase(run, run.phases[i]);
      } catch (const UsageError& error) {
        throw place.error(detail::without_place(error));
      }
    }();
    if (!detail::have_same_strategies(run, phase))
      throw place.error("it changes the strategy of a subgraph, which belongs to the run as a whole");
    if (!detail::have_same_weights(run, phase))
      throw place.error("it changes the shape of weights, and a phase goes on with those of the one before");
  }
}

// `like`: a run whose data's source is the same, so that its files need not be looked into once more.
Run read(const JsonValue& value, std::shared_ptr<const Registry> shared_registry, const Run* like) {
  const Registry& registry = *shared_registry;
  if (!value.is_object()) throw value.expected("a run: an object with data, graph, loss and optimizer");
  value.refuse_other_keys({"seed", "data", "graph", "workers", "clients", "search", "loss", "metrics", "optimizer",
                           "schedule", "phases", "train", "checkpoints", "output"});
  const std::optional<JsonValue> seed = value.find("seed");

  const JsonValue data_value = value.at("data");
  if (!data_value.is_object())
    throw data_value.expected(R"(data, as in {"source": "fashion_mnist", "batch_size": 128})");
  const Options data_options(data_value);
  const DataSourceType& type = registry.data_sources.at(data_options.at("source"));
  DataSource source =
      like != nullptr ? like->data.opened_by : told_at(data_value, [&] { return type.resolve(data_options); });
  DataOptions wishes = read_data_options(data_options, source);
  RunData data{.source = type.name,
               .opened_by = std::move(source),
               .options = wishes,
               .batch_size = data_options.integer("batch_size", {.min = 1, .max = kMostRows}),
               .input_order = {}};
  std::vector<std::string> other_keys{"client_split", "client_test"};
  if (like != nullptr) {
    for (const auto& [key, its] : like->written->at("data").items()) other_keys.push_back(key);
  }
  data_options.refuse_other_keys(std::move(other_keys));
  refuse_unless_whole(data_value, data.opened_by.open != nullptr, "open");

  const JsonValue graph_value = value.at("graph");
  Graph graph = Graph::from_json(graph_value, registry.operators);
  const DataDescription& description = data.opened_by.description;
  data.input_order = match_inputs(graph_value.at("inputs"), graph, description);
  const ValueSpec output = graph.value(graph.outputs().front().value);

  const JsonValue loss_value = value.at("loss");
  const std::string loss_name = name_in(loss_value);
  Loss loss = resolve_named(registry.losses, Options(loss_value), output, description);
  refuse_unless_whole(loss_value, loss.compute != nullptr, "compute");
  std::vector<RunMetric> metrics;
  if (const std::optional<JsonValue> list = value.find("metrics"))
    metrics = read_metrics(*list, registry.metrics, output, description);
  // An empty one has the defaults.
  const JsonDocument nothing = JsonDocument::parse("{}", "train");
  const JsonValue train = value.find("train").value_or(nothing.root());
  const std::optional<JsonValue> checkpoints = value.find("checkpoints");
  const std::optional<JsonValue> folder = value.find("output");
  const std::optional<JsonValue> schedule = value.find("schedule");
  if (folder && folder->string().empty()) throw folder->expected("a folder");
  const Length length = length_of(graph, value.find("phases").has_value());
  Run run{.seed = seed ? seed->unsigned_integer() : 0,
          .data = std::move(data),
          .graph = std::move(graph),
          .workers = {},
          .clients = {},
          .search = {},
          .coordinator = {},
          .phases = {},
          .loss_name = loss_name,
          .loss = std::move(loss),
          .metrics = {},
          .optimizer = optimizer_from_json(value.at("optimizer")),
          .schedule = schedule ? schedule_from_json(*schedule) : Schedule{},
          .train = read_train(train, metrics, length),
          .checkpoints = checkpoints ? read_checkpoints(*checkpoints) : RunCheckpoints{},
          .output = folder ? folder->string() : "runs/latest",
          .warnings = {},
          .resolved = nullptr,
          .written = nullptr,
          .registry = std::move(shared_registry)};
  run.metrics = std::move(metrics);
  run.workers = read_workers(value, run.graph);
  read_clients(value, run);
  check_strategy(value, run);
  read_coordinator(value, registry.coordinators, run);
  run.written = std::make_shared<const nlohmann::ordered_json>(value.raw_with_files());
  read_search(value, run);
  read_phases(value, run);
  run.warnings = run.graph.warnings();
  warn_of_what_is_not_trained(run.graph, run.warnings);
  warn_of_micro_batches(run.graph, run.warnings);
  warn_of_rounds_that_repeat(run, run.warnings);
  warn_of_a_pull_too_strong(run, run.warnings);
  run.resolved = std::make_shared<const nlohmann::ordered_json>(resolve(*run.written, run));
  return run;
}

}  // namespace

Run read_run(const JsonValue& value, const Registry& registry) {
  return read_run(value, std::make_shared<const Registry>(registry));
}

Run read_run(const JsonValue& value, std::shared_ptr<const Registry> registry) {
  return read(value, std::move(registry), nullptr);
}

bool is_higher_better(const Run& run) {
  const auto metric = std::ranges::find(run.metrics, run.train.best_by, &RunMetric::name);
  return metric != run.metrics.end() && metric->metric.is_better_higher;
}

Run detail::read_run_like(const JsonValue& value, const Run& like) { return read(value, like.registry, &like); }

}  // namespace tutti
