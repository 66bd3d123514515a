#include "cli/trained_run.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/json.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/checkpoint.hpp>

namespace tutti::cli {

namespace fs = std::filesystem;

void TrainedRun::add_to(CommandLine& line) {
  source_.add_to(line);
  line.option("--weights", which_, "best, last, or a safetensors file");
  line.option("--replica", replica_, 0, 100'000'000, "whose, where replicas or clients have parameters of their own");
}

// The best is the one that the last checkpoint says is.
fs::path TrainedRun::find_file() const {
  if (which_ != "best" && which_ != "last") {
    if (!fs::exists(which_))
      throw UsageError(fmt::format("--weights {}: there is no such file; expected best, last or a file", which_));
    return which_;
  }
  const CheckpointFolder folder(fs::path(run_->output) / "checkpoints", run_->checkpoints);
  const std::vector<CheckpointFile> files = folder.files();
  if (files.empty()) {
    throw UsageError(
        fmt::format("there is no checkpoint in {}; 'tutti train' writes them, --weights names a file", run_->output));
  }
  std::vector<std::string> problems;
  const std::optional<Checkpoint> last = folder.read_last(problems);
  for (const std::string& problem : problems) fmt::print(stderr, "tutti: warning: {}\n", problem);
  if (!last) throw Error(fmt::format("no checkpoint in {} can be read", run_->output));
  const auto file_of = [&](std::int64_t step) {
    const auto found = std::ranges::find(files, step, &CheckpointFile::step);
    return found == files.end() ? fs::path() : found->path;
  };
  const fs::path best = which_ == "best" && last->state.best.value ? file_of(last->state.best.step) : fs::path();
  if (!best.empty()) return best;
  if (which_ == "best" && last->state.best.value) {
    fmt::print(stderr, "tutti: warning: the best checkpoint, of step {}, was not kept: taking the last\n",
               last->state.best.step);
  }
  return file_of(last->state.step);
}

// The best of a population has values of its own, which its file says. The rows are those of the run that was named,
// which may have been moved since; and what --set says holds.
Run TrainedRun::best_member() const {
  const nlohmann::ordered_json& named = *run_->written;
  nlohmann::ordered_json member = JsonDocument::parse(read_checkpoint(file_).state.run, file_.string()).root().raw();
  nlohmann::ordered_json data = named.at("data");
  for (const SearchDimension& dimension : run_->search.dimensions) {
    for (const auto& [key, value] : member.at("data").items()) {
      if (dimension.path == "data." + key || dimension.path.starts_with("data." + key + ".")) data[key] = value;
    }
  }
  member["data"] = std::move(data);
  // Values may be set that a member alone does not have.
  const nlohmann::ordered_json strategy = member["graph"]["strategy"];
  member["graph"]["strategy"] = named.at("graph").at("strategy");
  member["search"] = named.at("search");
  const JsonDocument set = source_.with_sets(JsonDocument::parse(member.dump(), file_.string()));
  member = set.root().raw();
  member["graph"]["strategy"] = strategy;
  member.erase("search");
  return read_run(JsonDocument::parse(member.dump(), file_.string()).root(), run_->registry);
}

void TrainedRun::load() {
  run_ = std::make_shared<const Run>(source_.read());
  file_ = find_file();
  if (std::holds_alternative<strategy::PopulationBased>(run_->graph.effective_strategy()) &&
      (which_ == "best" || which_ == "last"))
    run_ = std::make_shared<const Run>(best_member());
  try {
    weights_ = weights_in(file_, replica_);
  } catch (const UsageError& error) {
    if (replica_ == 0) throw;
    throw UsageError(fmt::format("--replica {}: {}", replica_, error.what()));
  }
  module_ = std::make_shared<GraphModule>(run_->graph, run_->seed);
  try {
    fill_module(weights_, *module_);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{} has not the weights of this graph: {}", file_.string(), error.what()));
  }
  // In the order of the graph, and what is the graph's alone.
  ParameterSet all;
  add_module(all, *module_);
  weights_ = std::move(all);
}

}  // namespace tutti::cli
