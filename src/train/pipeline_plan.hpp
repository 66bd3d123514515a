// What all workers of a ModelParallel run know: the cut, what goes from stage to stage, where each parameter is
// updated, and who does what when.
//
//   const auto plan = std::make_shared<const PipelinePlan>(run);
//   for (const StageTask& task : plan->order(micro_batches)[worker]) ...
//
// A pure function of the run file, the same on every worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/graph/consumers.hpp>
#include <tutti/graph/cut.hpp>
#include <tutti/strategy/pipeline_schedule.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// A value that a stage takes from outside. It has consumers in the stage; their gradients go back in runs, each the sum
// of its consumers' in their order. Only the first of all consumers can be several: sums of others would have other
// bits.
struct Intake {
  std::size_t value = 0;
  std::vector<std::size_t> from = {};               // stages; none where it is an input of the graph
  std::vector<std::size_t> consumers = {};          // of the value, those in this stage
  std::vector<std::vector<std::size_t>> runs = {};  // of those with a gradient
  std::uint64_t tag = 0;  // of the value, from the first of `from`; behind it those of its runs, then the next one's

  std::uint64_t tag_of_value(std::size_t sender) const { return tag + sender * (1 + runs.size()); }
  std::uint64_t tag_of_run(std::size_t sender, std::size_t run) const { return tag_of_value(sender) + 1 + run; }
};

// Where a stage's value goes: an intake of another stage.
struct Outlet {
  std::size_t stage = 0;
  std::size_t intake = 0;
  std::size_t sender = 0;  // which of the intake's `from` this is
};

// One part of a parameter's gradient: that of a consumer, in a stage.
struct GradientPart {
  std::size_t stage = 0;
  std::size_t consumer = 0;  // of the parameter
};

// A parameter that is trained. Its parts are added up in their order, by the worker that its first one belongs to.
struct TrainedParameter {
  std::size_t number = 0;  // the graph's
  int home = 0;
  std::vector<GradientPart> parts = {};
  std::vector<int> others = {};  // workers that have it, too
};

class PipelinePlan {
 public:
  explicit PipelinePlan(const Run& run);

  const Cut& cut() const { return cut_; }
  const StageGraph& stages() const { return stages_; }
  const Consumers& consumers() const { return consumers_; }
  int workers() const { return static_cast<int>(cut_.workers.size()); }
  const std::vector<Intake>& intakes(std::size_t stage) const { return intakes_[stage]; }
  const std::vector<Outlet>& outlets(std::size_t stage) const { return outlets_[stage]; }
  // In the order of their names.
  const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  // Of the parts of parameter p, the first has this tag; those behind it follow.
  std::uint64_t tag_of_parameter(std::size_t p) const { return parameter_tags_[p]; }
  // Which stages compute the loss: replicas of one.
  bool has_loss(std::size_t stage) const;
  // Of a worker.
  std::vector<bool> nodes_of(int worker) const;
  bool needs_rows(int worker) const;

  // Rows of a batch that a micro-batch has, from its first on.
  std::int64_t micro_batch_rows(std::int64_t batch_rows) const;
  std::int64_t micro_batches(std::int64_t batch_rows) const;
  WorkOrder order(std::int64_t micro_batches) const;

 private:
  void connect(const Graph& graph);
  void place_parameters(const Graph& graph);
  std::size_t copies_of(std::size_t stage) const { return static_cast<std::size_t>(cut_.stages[stage].replicas); }

  Cut cut_;
  StageGraph stages_;
  Consumers consumers_;
  std::vector<std::vector<Intake>> intakes_;  // by stage
  std::vector<std::vector<Outlet>> outlets_;
  std::vector<TrainedParameter> parameters_;
  std::vector<std::uint64_t> parameter_tags_;
  std::size_t loss_stage_ = 0;
  std::int64_t micro_batch_size_ = 0;  // 0: the whole batch
  strategy::Schedule schedule_ = strategy::Schedule::gpipe;
  std::uint64_t tags_ = 1;
};

// Which of the rows that one stage has another one has, too: their places in either.
struct CommonRows {
  std::vector<std::int64_t> in_first = {};
  std::vector<std::int64_t> in_second = {};
  bool is_all = false;  // of both, in the same order
};
CommonRows common_rows(const CutStage& first, const CutStage& second, std::int64_t rows);

}  // namespace tutti::detail
