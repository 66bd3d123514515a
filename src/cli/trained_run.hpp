// What a run has learnt, as the command line names it: the run, which of its weights, and whose.
//
//   TrainedRun trained("eval");
//   trained.add_to(line);                     // the run, --set, --plugin, --weights, --replica
//   if (!line.parse(arguments)) return;
//   trained.load();
//   trained.run(); trained.module(); trained.weights();
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <tutti/base/parameter_set.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/run.hpp>

#include "cli/command_line.hpp"
#include "cli/run_document.hpp"

namespace tutti::cli {

class TrainedRun {
 public:
  explicit TrainedRun(std::string verb) : source_(std::move(verb)) {}

  void add_to(CommandLine& line);
  // A UsageError where the run has no such weights, or they are not those of its graph.
  void load();

  const std::shared_ptr<const Run>& run() const { return run_; }
  const std::shared_ptr<GraphModule>& module() const { return module_; }
  const ParameterSet& weights() const { return weights_; }
  // Where they lie.
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path find_file() const;
  Run best_member() const;

  RunDocument source_;
  std::string which_ = "best";
  int replica_ = 0;
  std::shared_ptr<const Run> run_;
  std::filesystem::path file_;
  ParameterSet weights_;
  std::shared_ptr<GraphModule> module_;
};

}  // namespace tutti::cli
