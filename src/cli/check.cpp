// `tutti check run.json`: reads a run file, and tells what would run: nodes, shapes, parameters, strategies, memory.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/found_partitions.hpp>
#include <tutti/train/node_costs.hpp>
#include <tutti/train/pipeline_forecast.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/trainer.hpp>

#include "cli/command_line.hpp"
#include "cli/graph_picture.hpp"
#include "cli/memory.hpp"
#include "cli/pipeline_report.hpp"
#include "cli/process.hpp"
#include "cli/run_document.hpp"
#include "cli/units.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

// "200960" becomes "200,960".
std::string in_groups(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3;) text.insert(place -= 3, ",");
  return text;
}

// A table whose columns are as wide as what is in them; numbers to the right.
class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    std::vector<std::size_t> widths;
    for (const std::vector<std::string>& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i)
        line += i == kNumbers ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
      line.erase(line.find_last_not_of(' ') + 1);
      fmt::print("{}\n", line);
    }
  }

 private:
  static constexpr std::size_t kNumbers = 3;
  std::vector<std::vector<std::string>> rows_;
};

std::int64_t count_of(const GraphParameter& parameter) { return element_count(parameter.shape).value_or(0); }

std::string parameters_of(const Graph& graph, const GraphNode& node) {
  std::int64_t count = 0;
  std::int64_t frozen = 0;
  std::string note;
  for (const std::size_t index : node.parameters) {
    const GraphParameter& parameter = graph.parameters()[index];
    if (parameter.path.starts_with(node.path + ".")) {
      count += count_of(parameter);
      if (parameter.is_frozen) frozen += count_of(parameter);
    } else {
      note = " tied";
    }
  }
  if (frozen > 0) note += frozen == count ? " frozen" : fmt::format(", {} frozen", in_groups(frozen));
  return node.parameters.empty() ? "" : in_groups(count) + note;
}

std::string strategy_of(const Graph& graph, const GraphNode& node) {
  const std::string name(name_of(graph.effective_strategy(node.path)));
  return graph.is_private(node) ? name + ", private" : name;
}

void print_nodes(const Graph& graph) {
  Table table;
  table.add({"node", "op", "output", "parameters", "strategy"});
  for (const GraphInput& input : graph.inputs()) table.add({input.name, "input", to_string(input.spec)});
  for (const GraphNode& node : graph.nodes()) {
    table.add(
        {node.path, node.op, to_string(node.resolved.output), parameters_of(graph, node), strategy_of(graph, node)});
  }
  table.print();
}

std::string how_long(const Run& run) {
  const RunTrain& train = run.train;
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (const auto* federated = std::get_if<strategy::Federated>(&strategy))
    return fmt::format("{} rounds", federated->rounds);
  if (const auto* population = std::get_if<strategy::PopulationBased>(&strategy))
    return fmt::format("{} generations", population->generations);
  if (!run.phases.empty()) return fmt::format("{} phases", run.phases.size());
  if (!train.steps) return fmt::format("{} epochs", *train.epochs);
  return train.epochs ? fmt::format("{} epochs or {} steps", *train.epochs, *train.steps)
                      : fmt::format("{} steps", *train.steps);
}

// How fast neighbours agree, as the run tells it. That of a topology that is drawn takes long to find where it is
// large.
void print_mixing(const Run& run) {
  constexpr std::int64_t kMostDrawn = 4096;
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const auto* its = parallel == nullptr ? nullptr : std::get_if<strategy::Decentralized>(&parallel->aggregation);
  if (its == nullptr || (its->topology == strategy::Topology::random && parallel->num_replicas > kMostDrawn)) return;
  const double gap = spectral_gap_of(*its, {.replicas = static_cast<int>(parallel->num_replicas), .seed = run.seed});
  fmt::print("mixing      spectral gap {:.3g}{}\n", gap, its->gossip ? " for a gradient of each" : "");
}

void print_summary(const Run& run, const Footprint& footprint, const std::string& memory) {
  std::int64_t all = 0;
  std::int64_t frozen = 0;
  for (const GraphParameter& parameter : run.graph.parameters()) {
    all += count_of(parameter);
    if (parameter.is_frozen) frozen += count_of(parameter);
  }
  fmt::print("\nparameters  {}{}\n", in_groups(all),
             frozen > 0 ? fmt::format(", {} of them frozen", in_groups(frozen)) : "");
  fmt::print("data        {}, {} rows a step\n", run.data.source, run.data.batch_size);
  fmt::print("loss        {}\n", run.loss_name);
  fmt::print("train       {}{}{}, into {}\n", how_long(run),
             run.train.clip_norm > 0 ? fmt::format(", gradients up to the norm {}", run.train.clip_norm) : "",
             run.train.accumulate > 1 ? fmt::format(", {} steps to an update", run.train.accumulate) : "", run.output);
  fmt::print("optimizer   {}, lr {}\n", to_string(run.optimizer),
             std::visit([](const auto& rule) { return rule.lr; }, run.optimizer));
  if (run.schedule != Schedule{}) fmt::print("schedule    {}\n", to_json(run.schedule).dump());
  fmt::print("strategy    {}\n", to_string(run.graph.effective_strategy()));
  for (const Subgraph& subgraph : run.graph.subgraphs()) {
    if (subgraph.strategy && !subgraph.path.empty())
      fmt::print("            {}: {}\n", subgraph.path, to_string(*subgraph.strategy));
  }
  print_mixing(run);
  if (bits_depend_on_timing(run)) fmt::print("bits        depend on who is faster\n");
  const nlohmann::ordered_json search = to_json(run.search);
  for (const auto& [path, range] : search.items())
    fmt::print("{}  {}: {}\n", path == search.begin().key() ? "search    " : "          ", path, range.dump());
  fmt::print("memory      {}, of it parameters {}, optimizer {}, gradients {}\n", memory,
             format_bytes(footprint.parameters), format_bytes(footprint.optimizer_state),
             format_bytes(footprint.gradients));
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  const bool is_cut = std::holds_alternative<strategy::ModelParallel>(strategy);
  const bool has_clients = std::holds_alternative<strategy::Federated>(strategy);
  // Members of one process take over from each other in memory or in files.
  if (std::holds_alternative<strategy::PopulationBased>(strategy)) return;
  if (wants_partitions(run))
    fmt::print("moved       not known: partitions are found by measuring\n");
  else if (footprint.moved)
    fmt::print("moved       {} between {}\n", format_bytes(*footprint.moved),
               has_clients ? "server and clients in a round"
               : is_cut    ? "workers in a step"
                           : "replicas in a step");
  else
    fmt::print("moved       not known: that is the coordinator's to say\n");
}

// A trial ends where it would take more memory than there is, and leaves the rest of the machine some.
void limit_memory() {
  const auto most = static_cast<rlim_t>(0.8 * static_cast<double>(available_memory()));
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  (void)::setrlimit(RLIMIT_DATA, &limit);
}

void print_trial(const Run& run) {
  limit_memory();
  try {
    fmt::print("{:.0f}\n", measure_memory(run));
  } catch (const std::exception& error) {
    const std::string why = error.what();  // of libtorch's, with a trace behind it
    const bool is_full = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                         why.find("can't allocate memory") != std::string::npos;
    throw Error(is_full ? fmt::format("they take more than the {} that are left on this machine",
                                      format_bytes(static_cast<double>(available_memory())))
                        : why.substr(0, why.find('\n')));
  }
}

// What has room on this machine with all of its values at once.
bool can_measure(const Footprint& footprint) {
  return footprint.total() + 2 * footprint.values < 0.5 * static_cast<double>(available_memory());
}

constexpr std::chrono::seconds kTrialDeadline{120};
// Where replicas are threads, what each finds free when it asks for memory differs from run to run.
constexpr std::size_t kTrialsOfThreads = 3;

// What a few steps of it take, tried by a process of its own; at least what can be counted, where they cannot be tried.
// `problem` is what went wrong with them.
std::string memory_of(const RunDocument& source, const Run& run, const Footprint& footprint, std::string& problem) {
  const std::string least = fmt::format("at least {}", format_bytes(footprint.total()));
  if (const auto why = why_not_trainable(run, 1)) return fmt::format("{} (not tried: {})", least, *why);
  constexpr std::int64_t kMostThreads = 256;
  const bool is_cut = std::holds_alternative<strategy::ModelParallel>(run.graph.effective_strategy());
  const std::int64_t threads = is_cut ? std::ssize(run.workers) : footprint.replicas;
  if (threads > kMostThreads)
    return fmt::format("{} (not tried with {} {})", least, threads, is_cut ? "workers" : "replicas");
  const auto available = static_cast<double>(available_memory());
  if (footprint.total() + footprint.values > 0.5 * available)
    return fmt::format("{} ({} are left on this machine, so it was not tried)", least, format_bytes(available));
  Signals signals;
  try {
    std::vector<double> tried(threads > 1 ? kTrialsOfThreads : 1);
    for (double& bytes : tried) {
      std::vector<std::string> words = source.arguments();
      words.insert(words.begin(), {own_path(), "check", "--trial"});
      const Output output = cli::run({.words = words, .environment = {"TUTTI_QUIET=1"}}, kTrialDeadline, signals);
      bytes = std::stod(output.text);
    }
    std::ranges::sort(tried);
    return format_bytes(tried[tried.size() / 2]);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    // What the trial itself said is the last line.
    const std::string_view why = error.what();
    const std::size_t said = why.rfind("\ntutti: ");
    problem =
        fmt::format("a few steps were tried, and failed: {}",
                    said == std::string_view::npos ? why : why.substr(said + std::string_view("\ntutti: ").size()));
    return least;
  }
}

}  // namespace

void run_check(Arguments arguments) {
  RunDocument source("check");
  std::string picture;
  std::string partitions;
  bool is_quick = false;
  bool is_trial = false;
  CommandLine line("Reads a run file, and tells what would run: nodes, shapes, parameters, strategies, memory.",
                   "tutti check");
  source.add_to(line);
  line.flag("--quick", is_quick, "do not try how much memory a few steps take");
  line.flag("--trial", is_trial, "try it, and print the bytes").hide();
  line.option("--dot", picture, "write the graph to this file, for Graphviz");
  line.option("--partitions", partitions, "write a run file with the partitions that were found to this file");
  if (!line.parse(arguments)) return;
  Run run = source.read();
  if (is_trial) return print_trial(run);
  if (!partitions.empty() && !wants_partitions(run))
    throw UsageError("--partitions: none are looked for: the strategy is not ModelParallel with auto_partition");
  if (!partitions.empty() && is_quick)
    throw UsageError("--partitions: with --quick nothing is measured, so that none are found");
  std::error_code problem;
  for (const auto& [option, file] : {std::pair("--dot", picture), std::pair("--partitions", partitions)}) {
    if (!file.empty() && std::filesystem::equivalent(file, source.file(), problem))
      throw UsageError(fmt::format("{}: {} is the run file itself", option, file));
  }
  if (picture == "-") {  // the picture alone, for a pipe
    fmt::print("{}", to_dot(run.graph));
    return;
  }
  if (!picture.empty()) write_picture(run.graph, picture);
  print_nodes(run.graph);
  const bool is_cut = std::holds_alternative<strategy::ModelParallel>(run.graph.effective_strategy());
  Footprint footprint = footprint_of(run);
  std::string failure;
  const std::string memory = is_quick ? fmt::format("at least {}, not tried", format_bytes(footprint.total()))
                                      : memory_of(source, run, footprint, failure);
  std::optional<NodeCosts> costs;
  if (is_cut && !is_quick && failure.empty() && can_measure(footprint))
    costs = measure_node_costs(run, *open_data(run).train);
  const bool are_found = costs && wants_partitions(run);
  if (are_found) {
    run = with_found_partitions(run, *costs);
    footprint = footprint_of(run);
  }
  print_summary(run, footprint, memory);
  if (is_cut && !wants_partitions(run)) fmt::print("{}", tell_pipeline(run, forecast_pipeline(run, costs)));
  if (are_found) fmt::print("partitions  {}\n", to_json(run.graph.effective_strategy()).at("partitions").dump());
  if (!partitions.empty() && !are_found && failure.empty())
    failure = "--partitions: there is not the memory to measure what the nodes cost, so that none were found";
  if (!partitions.empty() && are_found) write_file(partitions, run.resolved->dump(2) + "\n");
  for (const std::string& warning : run.warnings) fmt::print(stderr, "tutti: warning: {}\n", warning);
  if (!failure.empty()) throw Error(failure);
}

}  // namespace tutti::cli
