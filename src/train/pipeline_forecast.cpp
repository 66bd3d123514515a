#include <tutti/train/pipeline_forecast.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "pipeline_plan.hpp"
#include "value_bytes.hpp"

namespace tutti {
namespace {

using detail::bytes_of;
using detail::GradientPart;
using detail::Intake;
using detail::PipelinePlan;
using detail::TrainedParameter;

// The share of all rows that two stages have both.
double common_share(const CutStage& first, const CutStage& second) {
  const std::int64_t period = static_cast<std::int64_t>(first.replicas) * second.replicas;
  const detail::CommonRows common = detail::common_rows(first, second, period);
  return common.is_all ? 1.0 / first.replicas
                       : static_cast<double>(common.in_first.size()) / static_cast<double>(period);
}

// What a stage has of a value, or of what its nodes compute, for one row of the batch.
double bytes_kept(const Run& run, const PipelinePlan& plan, std::size_t stage) {
  const bool recomputes = std::get<strategy::ModelParallel>(run.graph.effective_strategy()).recompute;
  double bytes = 0;
  for (const Intake& intake : plan.intakes(stage)) bytes += bytes_of(run.graph.value(intake.value));
  for (const std::size_t node : plan.cut().stages[stage].nodes) {
    if (!recomputes) bytes += bytes_of(run.graph.nodes()[node].resolved.output);
  }
  return bytes / plan.cut().stages[stage].replicas;
}

// The order of a worker's tasks says what it has begun and not gone back through.
std::vector<LiveActivations> live_of(const Run& run, const PipelinePlan& plan, const WorkOrder& order) {
  const double rows = static_cast<double>(plan.micro_batch_rows(run.data.batch_size));
  std::vector<LiveActivations> live(order.size());
  for (std::size_t w = 0; w < order.size(); ++w) {
    std::multiset<std::int64_t> under_way;  // micro-batches, as often as there are stages that have begun them
    std::set<std::int64_t> different;
    double bytes = 0;
    for (const StageTask& task : order[w]) {
      if (!plan.stages().stages[task.stage].has_backward) continue;
      const double its = rows * bytes_kept(run, plan, task.stage);
      if (task.pass == Pass::forward) {
        under_way.insert(task.micro_batch);
        different.insert(task.micro_batch);
        bytes += its;
      } else {
        under_way.erase(under_way.find(task.micro_batch));
        if (!under_way.contains(task.micro_batch)) different.erase(task.micro_batch);
        bytes -= its;
      }
      live[w].micro_batches = std::max(live[w].micro_batches, std::ssize(different));
      live[w].bytes = std::max(live[w].bytes, bytes);
    }
  }
  return live;
}

// Of a micro-batch, from one stage to another.
double transfer(const Run& run, const PipelinePlan& plan, std::size_t from, std::size_t to) {
  const std::vector<CutStage>& stages = plan.cut().stages;
  if (stages[from].worker == stages[to].worker) return 0;
  const double rows = static_cast<double>(plan.micro_batch_rows(run.data.batch_size));
  double seconds = 0;
  for (const Intake& intake : plan.intakes(to)) {
    if (std::ranges::find(intake.from, from) == intake.from.end()) continue;
    seconds += detail::seconds_to_move(bytes_of(run.graph.value(intake.value)) * rows *
                                       common_share(stages[from], stages[to]));
  }
  return seconds;
}

std::vector<StageCost> costs_of(const Run& run, const PipelinePlan& plan, const NodeCosts& costs) {
  const bool recomputes = std::get<strategy::ModelParallel>(run.graph.effective_strategy()).recompute;
  // Of a batch that is smaller than a micro-batch was measured on, or larger where the data are few.
  const double scale =
      static_cast<double>(plan.micro_batch_rows(run.data.batch_size)) / static_cast<double>(costs.rows);
  std::vector<StageCost> result;
  for (std::size_t s = 0; s < plan.cut().stages.size(); ++s) {
    const CutStage& stage = plan.cut().stages[s];
    StageCost cost{.forward = 0, .backward = 0};
    for (const std::size_t from : plan.stages().stages[s].after) cost.transfers.push_back(transfer(run, plan, from, s));
    for (const std::size_t node : stage.nodes) {
      cost.forward += costs.nodes[node].forward * scale / stage.replicas;
      cost.backward += costs.nodes[node].backward * scale / stage.replicas;
    }
    if (recomputes) cost.backward += cost.forward;
    result.push_back(std::move(cost));
  }
  return result;
}

std::vector<double> updates_of(const Run& run, const PipelinePlan& plan, const NodeCosts& costs) {
  std::vector<double> seconds(static_cast<std::size_t>(plan.workers()));
  for (const TrainedParameter& one : plan.parameters()) {
    const Shape& shape = run.graph.parameters()[one.number].shape;
    seconds[static_cast<std::size_t>(one.home)] +=
        costs.update_of_element * static_cast<double>(element_count(shape).value_or(0));
  }
  return seconds;
}

class Traffic {
 public:
  PipelineTraffic& between(int from, int to) {
    const auto place = all_.try_emplace({from, to}).first;
    place->second.from = from;
    place->second.to = to;
    return place->second;
  }

  void add_node(int from, int to, std::size_t node) {
    std::vector<std::size_t>& nodes = between(from, to).nodes;
    if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
  }

  std::vector<PipelineTraffic> list() const {
    std::vector<PipelineTraffic> result;
    for (const auto& [key, traffic] : all_) result.push_back(traffic);
    return result;
  }

 private:
  std::map<std::pair<int, int>, PipelineTraffic> all_;
};

}  // namespace

std::vector<PipelineTraffic> traffic_of(const Run& run) {
  const PipelinePlan plan(run);
  const std::vector<CutStage>& stages = plan.cut().stages;
  const std::size_t inputs = run.graph.inputs().size();
  const auto rows = static_cast<double>(run.data.batch_size);
  Traffic traffic;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const Intake& intake : plan.intakes(s)) {
      for (const std::size_t from : intake.from) {
        if (stages[from].worker == stages[s].worker) continue;
        const double bytes = bytes_of(run.graph.value(intake.value)) * rows * common_share(stages[from], stages[s]);
        if (bytes == 0) continue;
        traffic.add_node(stages[from].worker, stages[s].worker, intake.value - inputs);
        traffic.between(stages[from].worker, stages[s].worker).values += bytes;
        if (intake.runs.empty()) continue;
        traffic.add_node(stages[s].worker, stages[from].worker, intake.value - inputs);
        traffic.between(stages[s].worker, stages[from].worker).gradients +=
            bytes * static_cast<double>(intake.runs.size());
      }
    }
  }
  for (const TrainedParameter& one : plan.parameters()) {
    const double bytes = bytes_of({.shape = run.graph.parameters()[one.number].shape});
    for (const GradientPart& part : one.parts) {
      const int from = stages[part.stage].worker;
      if (from != one.home) traffic.between(from, one.home).parameters += bytes;
    }
    for (const int other : one.others) traffic.between(one.home, other).parameters += bytes;
  }
  return traffic.list();
}

PipelineForecast forecast_pipeline(const Run& run, const std::optional<NodeCosts>& costs) {
  const PipelinePlan plan(run);
  PipelineForecast forecast{.cut = plan.cut(), .micro_batches = plan.micro_batches(run.data.batch_size)};
  const WorkOrder order = plan.order(forecast.micro_batches);
  forecast.live = live_of(run, plan, order);
  if (!costs) return forecast;
  forecast.stages = costs_of(run, plan, *costs);
  const WorkForecast work = forecast_work(plan.stages(), order, forecast.stages);
  const std::vector<double> updates = updates_of(run, plan, *costs);
  forecast.busy = work.busy;
  for (std::size_t w = 0; w < updates.size(); ++w) forecast.busy[w] += updates[w];
  forecast.seconds = work.seconds + std::ranges::max(updates);
  forecast.bubble = work.bubble;
  return forecast;
}

}  // namespace tutti
