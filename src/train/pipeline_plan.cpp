#include "pipeline_plan.hpp"

#include <algorithm>

namespace tutti::detail {

PipelinePlan::PipelinePlan(const Run& run) {
  const auto& strategy = std::get<strategy::ModelParallel>(run.graph.effective_strategy());
  cut_ = cut_graph(run.graph, strategy, run.workers);
  stages_ = stage_graph(run.graph, cut_);
  consumers_ = consumers_of(run.graph);
  if (const auto* pipeline = std::get_if<strategy::Pipeline>(&strategy.communication)) {
    micro_batch_size_ = pipeline->micro_batch_size;
    schedule_ = pipeline->schedule;
  }
  loss_stage_ = cut_.stage_of[run.graph.outputs().front().value - run.graph.inputs().size()];
  connect(run.graph);
  place_parameters(run.graph);
}

void PipelinePlan::connect(const Graph& graph) {
  const std::size_t inputs = graph.inputs().size();
  const std::vector<bool> is_before_loss = nodes_before_loss(graph);
  const std::vector<bool> has_gradient = values_with_gradient(graph);
  intakes_.resize(cut_.stages.size());
  outlets_.resize(cut_.stages.size());
  for (std::size_t s = 0; s < cut_.stages.size(); ++s) {
    const std::size_t own_first = s - static_cast<std::size_t>(cut_.stages[s].replica);
    for (std::size_t value = 0; value < consumers_.of_value.size(); ++value) {
      const bool is_input = value < inputs;
      if (!is_input && cut_.stage_of[value - inputs] == own_first) continue;  // its own
      Intake intake{.value = value, .tag = tags_};
      const std::vector<Consumer>& all = consumers_.of_value[value];
      bool is_first = true;  // of those with a gradient, up to now
      for (std::size_t c = 0; c < all.size(); ++c) {
        const bool is_node = all[c].node < graph.nodes().size();
        const bool is_here = is_node && cut_.stage_of[all[c].node] == own_first;
        // The loss is the first output's.
        const bool has_one =
            has_gradient[value] &&
            (is_node ? is_before_loss[all[c].node] && has_gradient[inputs + all[c].node] : all[c].position == 0);
        if (is_here) intake.consumers.push_back(c);
        if (!has_one) continue;
        if (is_here && is_first && !intake.runs.empty())
          intake.runs.front().push_back(c);
        else if (is_here)
          intake.runs.push_back({c});
        is_first = is_first && is_here;
      }
      if (intake.consumers.empty()) continue;
      if (!is_input) {
        const std::size_t first = cut_.stage_of[value - inputs];
        for (std::size_t copy = first; copy < first + copies_of(first); ++copy) {
          if (std::ranges::find(stages_.stages[s].after, copy) == stages_.stages[s].after.end()) continue;
          outlets_[copy].push_back({.stage = s, .intake = intakes_[s].size(), .sender = intake.from.size()});
          intake.from.push_back(copy);
        }
      }
      tags_ += std::max<std::size_t>(intake.from.size(), 1) * (1 + intake.runs.size());
      intakes_[s].push_back(std::move(intake));
    }
  }
}

void PipelinePlan::place_parameters(const Graph& graph) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
    if (!graph.parameters()[i].is_frozen && !consumers_.of_parameter[i].empty()) numbers.push_back(i);
  }
  std::ranges::sort(numbers, {}, [&](std::size_t number) { return graph.parameters()[number].path; });
  for (const std::size_t number : numbers) {
    TrainedParameter one{.number = number};
    const std::vector<Consumer>& consumers = consumers_.of_parameter[number];
    for (std::size_t c = 0; c < consumers.size(); ++c) {
      const std::size_t first = cut_.stage_of[consumers[c].node];
      for (std::size_t copy = first; copy < first + copies_of(first); ++copy)
        one.parts.push_back({.stage = copy, .consumer = c});
    }
    one.home = cut_.stages[one.parts.front().stage].worker;
    for (const GradientPart& part : one.parts) {
      const int worker = cut_.stages[part.stage].worker;
      if (worker != one.home && std::ranges::find(one.others, worker) == one.others.end()) one.others.push_back(worker);
    }
    parameter_tags_.push_back(tags_);
    tags_ += one.parts.size() + 1;  // and that of the new values
    parameters_.push_back(std::move(one));
  }
}

bool PipelinePlan::has_loss(std::size_t stage) const {
  return stage >= loss_stage_ && stage < loss_stage_ + copies_of(loss_stage_);
}

std::vector<bool> PipelinePlan::nodes_of(int worker) const {
  std::vector<bool> has_node(cut_.stage_of.size());
  for (const CutStage& stage : cut_.stages) {
    for (const std::size_t node : stage.nodes) has_node[node] = has_node[node] || stage.worker == worker;
  }
  return has_node;
}

bool PipelinePlan::needs_rows(int worker) const {
  for (std::size_t s = 0; s < cut_.stages.size(); ++s) {
    if (cut_.stages[s].worker != worker) continue;
    const bool has_input = std::ranges::any_of(intakes_[s], [](const Intake& intake) { return intake.from.empty(); });
    if (has_input || has_loss(s)) return true;
  }
  return false;
}

std::int64_t PipelinePlan::micro_batch_rows(std::int64_t batch_rows) const {
  return micro_batch_size_ == 0 ? batch_rows : std::min(micro_batch_size_, batch_rows);
}

std::int64_t PipelinePlan::micro_batches(std::int64_t batch_rows) const {
  const std::int64_t rows = micro_batch_rows(batch_rows);
  return (batch_rows + rows - 1) / rows;
}

WorkOrder PipelinePlan::order(std::int64_t micro_batches) const {
  return schedule_work(stages_, micro_batches, schedule_);
}

CommonRows common_rows(const CutStage& first, const CutStage& second, std::int64_t rows) {
  CommonRows common;
  if (first.replicas == second.replicas && first.replica == second.replica) {
    common.is_all = true;
    return common;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    if (row % first.replicas != first.replica || row % second.replicas != second.replica) continue;
    common.in_first.push_back(row / first.replicas);
    common.in_second.push_back(row / second.replicas);
  }
  return common;
}

}  // namespace tutti::detail
