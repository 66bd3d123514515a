#include "stage_worker.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <tutti/base/assert.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/rows.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "saved_tensors.hpp"

namespace tutti::detail {
namespace {

// Tags of a step: what it is, and of which micro-batch.
constexpr int kBitsOfMicroBatch = 31;

// Those rows of a tensor that another stage has, too, in its order.
torch::Tensor rows_for(const torch::Tensor& tensor, const std::vector<std::int64_t>& places) {
  return tensor.index_select(0, torch::tensor(places));
}

void put_rows(torch::Tensor& whole, std::int64_t rows, const std::vector<std::int64_t>& places,
              const torch::Tensor& part) {
  if (!whole.defined()) {
    std::vector<std::int64_t> sizes = part.sizes().vec();
    sizes[0] = rows;
    whole = torch::zeros(sizes, part.options());
  }
  whole.index_copy_(0, torch::tensor(places), part);
}

// Gradients that are added up later are laid out as their parameters, and nobody else's.
torch::Tensor own_gradient(const torch::Tensor& parameter, torch::Tensor gradient) {
  const bool is_alike = gradient.strides() == parameter.strides() && gradient.scalar_type() == parameter.scalar_type();
  if (is_alike && gradient.use_count() == 1 && gradient.storage().use_count() == 1) return gradient;
  return torch::empty_like(parameter, parameter.options().requires_grad(false)).copy_(gradient.detach());
}

DataRows rows_from(const DataRows& data, std::int64_t first, std::int64_t count, const CutStage& stage) {
  const Rows rows = Rows::of_shard(count, stage.replicas, stage.replica);
  const auto take = [&](const torch::Tensor& tensor) {
    const torch::Tensor its = tensor.size(0) == count ? tensor : tensor.narrow(0, first, count);
    return rows.of(its);
  };
  DataRows mine;
  for (const torch::Tensor& input : data.inputs) mine.inputs.push_back(take(input));
  mine.target = take(data.target);
  return mine;
}

}  // namespace

StageWorker::StageWorker(std::shared_ptr<const Run> run, std::shared_ptr<const PipelinePlan> plan,
                         const StageWorkerOptions& options)
    : run_(std::move(run)),
      plan_(std::move(plan)),
      options_(options),
      deadline_of_step_(Deadline::after(run_->train.deadline)),
      recomputes_(std::get<strategy::ModelParallel>(run_->graph.effective_strategy()).recompute),
      module_(std::make_shared<GraphModule>(run_->graph, run_->seed, plan_->nodes_of(options.worker))),
      rule_(torch_options(run_->optimizer)) {
  ParameterUpdate::Parameters own;
  std::size_t parts = 0;
  for (std::size_t p = 0; p < plan_->parameters().size(); ++p) {
    const TrainedParameter& one = plan_->parameters()[p];
    first_part_.push_back(parts);
    parts += one.parts.size();
    if (one.home != options_.worker) continue;
    own_parameters_.push_back(p);
    own.emplace_back(run_->graph.parameters()[one.number].path, module_->parameters_by_number()[one.number]);
  }
  part_sums_.resize(parts);
  update_.emplace(std::move(own), make_optimizer(module_->groups(*rule_), *rule_));
  for (const torch::optim::OptimizerParamGroup& group : update_->optimizer().param_groups())
    rates_.push_back(group.options().get_lr());
}

const std::string& StageWorker::id_of(int worker) const {
  return plan_->cut().workers[static_cast<std::size_t>(worker)].id;
}

// The first node of the stage that it comes to last; none where it has none.
std::optional<std::size_t> StageWorker::last_node_of(int worker) const {
  std::optional<std::size_t> last;
  for (const CutStage& one : plan_->cut().stages) {
    if (one.worker == worker) last = one.nodes.front();
  }
  const auto order = orders_.find(plan_->micro_batches(std::max<std::int64_t>(batch_rows_, 1)));
  if (is_evaluating_ || order == orders_.end()) return last;
  const std::vector<StageTask>& tasks = order->second[static_cast<std::size_t>(worker)];
  return tasks.empty() ? last : stage(tasks.back().stage).nodes.front();
}

std::string StageWorker::nodes_of(std::size_t number) const {
  const std::vector<std::size_t>& nodes = stage(number).nodes;
  const auto path = [&](std::size_t node) { return run_->graph.nodes()[node].path; };
  return nodes.size() == 1 ? fmt::format("the node '{}'", path(nodes.front()))
                           : fmt::format("the nodes '{}' to '{}'", path(nodes.front()), path(nodes.back()));
}

std::string StageWorker::at_work_on() const {
  const std::size_t number = at_stage_.load();
  return number == kNoStage ? "" : nodes_of(number);
}

void StageWorker::fill(const ParameterSet& weights) { fill_module(weights, *module_); }

double StageWorker::set_rate(double factor) {
  std::vector<torch::optim::OptimizerParamGroup>& groups = update_->optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates_[i] * factor);
  return rule_->get_lr() * factor;
}

// --- a step ---

WorkerReport StageWorker::step(const WorkerBatch& batch, bool is_interrupted) {
  WorkerReport report{.is_interrupted = is_interrupted};
  deadline_of_step_ = Deadline::after(run_->train.deadline);
  try {
    run_tasks(batch);
    update_->take(sum_of_parts());
    agree(report);
    share_new_values();
    options_.channel.finish(deadline_of_step_);
  } catch (const Agreed&) {
    throw;
  } catch (const std::exception& error) {
    fail(error);
  }
  ++progress_.steps;
  report.spans = std::move(spans_);
  return report;
}

void StageWorker::run_tasks(const WorkerBatch& batch) {
  batch_rows_ = batch.rows;
  live_.clear();
  here_.clear();
  spans_.clear();
  sums_ = {.metrics = std::vector<MetricSum>(run_->metrics.size())};
  std::ranges::fill(part_sums_, torch::Tensor());
  const std::int64_t micro_batches = plan_->micro_batches(batch.rows);
  auto order = orders_.find(micro_batches);
  if (order == orders_.end()) order = orders_.emplace(micro_batches, plan_->order(micro_batches)).first;
  for (const StageTask& task : order->second[static_cast<std::size_t>(options_.worker)]) {
    if (own_rows(task) == 0) continue;
    at_stage_ = task.stage;
    is_in_backward_ = task.pass == Pass::backward;
    task.pass == Pass::forward ? forward(task, batch) : backward(task, batch);
    at_stage_ = kNoStage;
    is_in_backward_ = false;
  }
}

std::int64_t StageWorker::rows_of(std::int64_t micro_batch) const {
  if (is_evaluating_) return batch_rows_;
  const std::int64_t rows = plan_->micro_batch_rows(batch_rows_);
  return std::min(rows, batch_rows_ - micro_batch * rows);
}

std::int64_t StageWorker::own_rows(const StageTask& task) const {
  const CutStage& its = stage(task.stage);
  return Rows::of_shard(rows_of(task.micro_batch), its.replicas, its.replica).count;
}

void StageWorker::forward(const StageTask& task, const WorkerBatch& batch) {
  const std::int64_t first_row = task.micro_batch * plan_->micro_batch_rows(batch_rows_);
  const std::vector<torch::Tensor> taken = take_in(task, batch.data, first_row);
  const Clock::time_point began = Clock::now();
  GraphPass pass;
  Live live = compute(task, taken, pass);
  if (plan_->has_loss(task.stage)) {
    add_loss(live, pass, task, rows_from(batch.data, first_row, rows_of(task.micro_batch), stage(task.stage)));
    sums_.loss += live.weight * (live.weight > 0 ? live.loss.item<double>() : 0);
    sums_.weight += live.weight;
  }
  note(SpanKind::compute, fmt::format("forward {}", task.micro_batch), began);
  hand_out(task, pass);
  if (!plan_->stages().stages[task.stage].has_backward) return;
  if (recomputes_) live = {.taken = taken};
  live_[{task.stage, task.micro_batch}] = std::move(live);
}

// What the stage needs from outside, by intake.
std::vector<torch::Tensor> StageWorker::take_in(const StageTask& task, const DataRows& data, std::int64_t first_row) {
  const CutStage& own = stage(task.stage);
  const std::int64_t rows = rows_of(task.micro_batch);
  std::vector<torch::Tensor> inputs;  // of the graph, where the stage has any
  std::vector<torch::Tensor> taken;
  for (const Intake& intake : plan_->intakes(task.stage)) {
    if (intake.from.empty()) {
      // An evaluation is the first replica's alone.
      if (inputs.empty())
        inputs = graph_inputs(*run_, rows_from(data, first_row, rows, is_evaluating_ ? CutStage{} : own));
      taken.push_back(inputs[intake.value]);
      continue;
    }
    torch::Tensor whole;
    for (std::size_t i = 0; i < intake.from.size(); ++i) {
      const CutStage& sender = stage(intake.from[i]);
      const CommonRows common = is_evaluating_ ? CommonRows{.is_all = true} : common_rows(sender, own, rows);
      if (!common.is_all && common.in_first.empty()) continue;
      if (is_evaluating_ && sender.replica > 0) continue;
      torch::Tensor part = receive(sender.worker, tag_of(intake.tag_of_value(i), task.micro_batch),
                                   intake.value - run_->graph.inputs().size());
      if (common.is_all)
        whole = std::move(part);
      else
        put_rows(whole, own_rows(task), common.in_second, part);
    }
    taken.push_back(std::move(whole));
  }
  return taken;
}

StageWorker::Live StageWorker::compute(const StageTask& task, const std::vector<torch::Tensor>& taken,
                                       GraphPass& pass) {
  const Consumers& consumers = plan_->consumers();
  Live live;
  pass.values.resize(consumers.of_value.size());
  const std::vector<Intake>& intakes = plan_->intakes(task.stage);
  const auto leaf_of = [](const torch::Tensor& tensor) { return tensor.detach().set_requires_grad(true); };
  for (std::size_t i = 0; i < intakes.size(); ++i) {
    const Intake& intake = intakes[i];
    SharedTensor& its = pass.values[intake.value];
    its.whole = taken[i];
    live.leaves.emplace_back();
    if (intake.runs.empty() || is_evaluating_) continue;
    const std::size_t count = consumers.of_value[intake.value].size();
    if (count > 1) its.copies.assign(count, its.whole);
    for (const std::vector<std::size_t>& run : intake.runs) {
      live.leaves.back().emplace_back();
      for (const std::size_t consumer : run) {
        torch::Tensor& place = count > 1 ? its.copies[consumer] : its.whole;
        place = leaf_of(place);
        live.leaves.back().back().push_back(place);
      }
    }
  }
  for (std::size_t p = 0; p < plan_->parameters().size() && !is_evaluating_; ++p) {
    const TrainedParameter& one = plan_->parameters()[p];
    const torch::Tensor& whole = module_->parameters_by_number()[one.number];
    const std::size_t count = consumers.of_parameter[one.number].size();
    for (std::size_t i = 0; i < one.parts.size(); ++i) {
      if (one.parts[i].stage != task.stage) continue;
      torch::Tensor leaf = whole;
      if (count > 1) {
        pass.parameters.resize(consumers.of_parameter.size());
        SharedTensor& its = pass.parameters[one.number];
        its.whole = whole;
        if (its.copies.empty()) its.copies.resize(count);
        leaf = its.copies[one.parts[i].consumer] = leaf_of(whole);
      }
      live.parameters.emplace_back(first_part_[p] + i, std::move(leaf));
    }
  }
  {
    const CutStage& own = stage(task.stage);
    const RandomDraws draws(
        {.seed = run_->seed,
         .step = static_cast<std::uint64_t>(progress_.steps),
         .shard = static_cast<std::uint64_t>(task.micro_batch) + (static_cast<std::uint64_t>(own.replica) << 32)});
    options_.ground->aside([&] { module_->compute(own.nodes, pass); });
  }
  for (const Outlet& outlet : plan_->outlets(task.stage)) {
    const Intake& intake = plan_->intakes(outlet.stage)[outlet.intake];
    if (!intake.runs.empty()) live.values[intake.value] = pass.values[intake.value];
  }
  return live;
}

void StageWorker::add_loss(Live& live, const GraphPass& pass, const StageTask& task, const DataRows& data) {
  const std::size_t value = run_->graph.outputs().front().value;
  const std::vector<Consumer>& consumers = plan_->consumers().of_value[value];
  const auto place = std::ranges::find(consumers, Consumer{run_->graph.nodes().size(), 0});
  const torch::Tensor& output = pass.values[value].for_consumer(static_cast<std::size_t>(place - consumers.begin()));
  WeightedLoss loss{torch::Tensor()};
  options_.ground->aside([&] { loss = run_->loss.compute(output, data.target); });
  live.loss = loss.loss;
  if (!live.loss.requires_grad()) throw UsageError("the loss does not depend on any parameter that is trained");
  live.weight = loss.weight.value_or(static_cast<double>(own_rows(task)));
  if (!(live.weight >= 0) || !std::isfinite(live.weight))
    throw UsageError(fmt::format("expected a weight of the loss from 0 on, found {}", live.weight));
  const torch::NoGradGuard no_gradients;
  for (std::size_t m = 0; m < run_->metrics.size(); ++m) {
    MetricSum sum;
    options_.ground->aside([&] { sum = run_->metrics[m].metric.measure(output.detach(), data.target); });
    sums_.metrics[m].sum += sum.sum;
    sums_.metrics[m].count += sum.count;
  }
}

void StageWorker::hand_out(const StageTask& task, const GraphPass& pass) {
  const CutStage& own = stage(task.stage);
  const Clock::time_point began = Clock::now();
  const std::vector<Outlet>& outlets = plan_->outlets(task.stage);
  for (const Outlet& outlet : outlets) {
    const CutStage& to = stage(outlet.stage);
    if (is_evaluating_ && to.replica > 0) continue;
    const CommonRows common =
        is_evaluating_ ? CommonRows{.is_all = true} : common_rows(own, to, rows_of(task.micro_batch));
    if (!common.is_all && common.in_first.empty()) continue;
    const Intake& intake = plan_->intakes(outlet.stage)[outlet.intake];
    const torch::Tensor value = pass.values[intake.value].whole.detach();
    send(to.worker, tag_of(intake.tag_of_value(outlet.sender), task.micro_batch),
         common.is_all ? value : rows_for(value, common.in_first));
  }
  if (!outlets.empty()) note(SpanKind::communication, fmt::format("send {}", task.micro_batch), began);
}

// What others have computed of the values that went to them: roots of the backward pass.
void StageWorker::take_gradients(const StageTask& task, Live& live, torch::autograd::variable_list& roots,
                                 torch::autograd::variable_list& gradients) {
  const CutStage& own = stage(task.stage);
  std::map<std::pair<std::size_t, std::size_t>, torch::Tensor> by_consumer;  // of a value
  for (const Outlet& outlet : plan_->outlets(task.stage)) {
    const Intake& intake = plan_->intakes(outlet.stage)[outlet.intake];
    const CutStage& from = stage(outlet.stage);
    const CommonRows common = common_rows(own, from, rows_of(task.micro_batch));
    if (!common.is_all && common.in_first.empty()) continue;
    for (std::size_t run = 0; run < intake.runs.size(); ++run) {
      const Consumer& consumer = plan_->consumers().of_value[intake.value][intake.runs[run].front()];
      torch::Tensor gradient =
          receive(from.worker, tag_of(intake.tag_of_run(outlet.sender, run), task.micro_batch), consumer.node);
      if (run == 0 && from.worker != options_.worker) {
        const std::uint64_t sent = tag_of(intake.tag_of_value(outlet.sender), task.micro_batch);
        options_.channel.release(from.worker, sent, deadline_of_step_);
      }
      if (!gradient.defined()) continue;
      torch::Tensor& its = by_consumer[{intake.value, intake.runs[run].front()}];
      if (common.is_all)
        its = std::move(gradient);
      else
        put_rows(its, own_rows(task), common.in_first, gradient);
    }
  }
  for (auto& [key, gradient] : by_consumer) {
    const torch::Tensor& root = live.values[key.first].for_consumer(key.second);
    if (!root.requires_grad()) continue;
    roots.push_back(root);
    gradients.push_back(std::move(gradient));
  }
  if (live.weight > 0) {
    roots.push_back(live.loss);
    gradients.push_back(torch::full_like(live.loss, live.weight));
  }
}

void StageWorker::backward(const StageTask& task, const WorkerBatch& batch) {
  const auto found = live_.find({task.stage, task.micro_batch});
  Live live = std::move(found->second);
  live_.erase(found);
  if (recomputes_) {
    const Clock::time_point began = Clock::now();
    const Sums before = sums_;
    const SavedTensors buffers = saved(module_->buffers());  // what a second pass must not change again
    GraphPass pass;
    live = compute(task, live.taken, pass);
    if (plan_->has_loss(task.stage)) {
      const std::int64_t first_row = task.micro_batch * plan_->micro_batch_rows(batch_rows_);
      add_loss(live, pass, task, rows_from(batch.data, first_row, rows_of(task.micro_batch), stage(task.stage)));
    }
    put_back(buffers);
    sums_ = before;
    note(SpanKind::compute, fmt::format("forward {} again", task.micro_batch), began);
  }
  torch::autograd::variable_list roots;
  torch::autograd::variable_list given;
  take_gradients(task, live, roots, given);
  const Clock::time_point began = Clock::now();
  torch::autograd::variable_list wanted;
  for (const auto& runs : live.leaves) {
    for (const auto& run : runs) wanted.insert(wanted.end(), run.begin(), run.end());
  }
  for (const auto& [part, leaf] : live.parameters) wanted.push_back(leaf);
  torch::autograd::variable_list gradients(wanted.size());
  if (!roots.empty() && !wanted.empty()) {
    options_.ground->aside([&] {
      gradients = torch::autograd::grad(roots, wanted, given, /*retain_graph=*/false, /*create_graph=*/false,
                                        /*allow_unused=*/true);
    });
  }
  roots.clear();
  std::size_t next = 0;
  std::vector<std::vector<torch::Tensor>> by_intake;  // the sum of each run
  for (const auto& runs : live.leaves) {
    by_intake.emplace_back();
    for (const auto& run : runs) {
      torch::Tensor sum;
      for (std::size_t c = 0; c < run.size(); ++c) {
        const torch::Tensor& gradient = gradients[next++];
        if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
      }
      by_intake.back().push_back(std::move(sum));
    }
  }
  for (const auto& [part, leaf] : live.parameters) {
    torch::Tensor gradient = std::move(gradients[next++]);
    if (gradient.defined()) add_to_sum(part, leaf, std::move(gradient));
  }
  live = {};
  note(SpanKind::compute, fmt::format("backward {}", task.micro_batch), began);
  const CutStage& own = stage(task.stage);
  const std::vector<Intake>& intakes = plan_->intakes(task.stage);
  for (std::size_t i = 0; i < intakes.size(); ++i) {
    const Intake& intake = intakes[i];
    for (std::size_t sender = 0; sender < intake.from.size(); ++sender) {
      const CutStage& to = stage(intake.from[sender]);
      const CommonRows common = common_rows(to, own, rows_of(task.micro_batch));
      if (!common.is_all && common.in_first.empty()) continue;
      for (std::size_t run = 0; run < intake.runs.size(); ++run) {
        const torch::Tensor& sum = by_intake[i][run];
        send(to.worker, tag_of(intake.tag_of_run(sender, run), task.micro_batch),
             common.is_all || !sum.defined() ? sum : rows_for(sum, common.in_second));
      }
    }
  }
}

void StageWorker::add_to_sum(std::size_t part, const torch::Tensor& parameter, torch::Tensor gradient) {
  if (gradient.is_sparse()) throw UsageError("a gradient is sparse; tutti trains with dense ones");
  torch::Tensor& sum = part_sums_[part];
  if (sum.defined())
    sum.add_(gradient);
  else
    sum = own_gradient(parameter, std::move(gradient));
}

// Of the parameters that are at home here: the parts of all workers in their order.
std::vector<torch::Tensor> StageWorker::sum_of_parts() {
  for (std::size_t p = 0; p < plan_->parameters().size(); ++p) {
    const TrainedParameter& one = plan_->parameters()[p];
    for (std::size_t i = 0; i < one.parts.size() && one.home != options_.worker; ++i) {
      if (stage(one.parts[i].stage).worker == options_.worker)
        send(one.home, tag_of(plan_->tag_of_parameter(p) + i, 0), part_sums_[first_part_[p] + i]);
    }
  }
  std::vector<torch::Tensor> sums;
  for (const std::size_t p : own_parameters_) {
    const TrainedParameter& one = plan_->parameters()[p];
    torch::Tensor sum;
    for (std::size_t i = 0; i < one.parts.size(); ++i) {
      const int from = stage(one.parts[i].stage).worker;
      torch::Tensor part = std::move(part_sums_[first_part_[p] + i]);
      if (from != options_.worker) {
        part = receive(from, tag_of(plan_->tag_of_parameter(p) + i, 0),
                       plan_->consumers().of_parameter[one.number][one.parts[i].consumer].node);
      }
      if (part.defined()) sum = sum.defined() ? sum + part : part;
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

// All workers come to the same: the loss, whether all is finite, and how much of the gradient counts.
void StageWorker::agree(WorkerReport& report) {
  const std::size_t metrics = run_->metrics.size();
  const std::string not_finite = update_->not_finite();
  std::vector<double> numbers{sums_.loss, sums_.weight, report.is_interrupted ? 1.0 : 0.0,
                              not_finite.empty() ? 0.0 : 1.0};
  for (const MetricSum& sum : sums_.metrics) numbers.insert(numbers.end(), {sum.sum, sum.count});
  const std::size_t squares = numbers.size();
  if (run_->train.clip_norm > 0) {  // of all parameters, by their names; those of others are 0
    std::size_t own = 0;
    for (std::size_t p = 0; p < plan_->parameters().size(); ++p) {
      const bool is_own = own < own_parameters_.size() && own_parameters_[own] == p;
      const Shape& shape = run_->graph.parameters()[plan_->parameters()[p].number].shape;
      const std::vector<double> its =
          is_own ? update_->squares_of(own++) : std::vector<double>(ParameterUpdate::piece_count(shape));
      numbers.insert(numbers.end(), its.begin(), its.end());
    }
  }
  const Clock::time_point began = Clock::now();
  together([&](const Duration& left) { all_reduce(options_.world, numbers, {.deadline = left}); });
  note(SpanKind::communication, "agree", began);
  if (!(numbers[1] > 0)) throw Agreed("all rows of the batch weigh nothing together, so they have no mean loss");
  if (numbers[3] > 0) refuse_not_finite(not_finite);
  report.loss = numbers[0] / numbers[1];
  report.is_interrupted = numbers[2] > 0;
  for (std::size_t m = 0; m < metrics; ++m) {
    const MetricSum sum{numbers[4 + 2 * m], numbers[5 + 2 * m]};
    report.metrics.push_back({run_->metrics[m].name, value_of(run_->metrics[m].metric, sum)});
  }
  const double weight = progress_.kept_weight + numbers[1];
  if (progress_.kept_steps + 1 < run_->train.accumulate) {
    update_->keep();
    progress_.kept_weight = weight;
    ++progress_.kept_steps;
    return;
  }
  double scale = 1 / weight;
  if (run_->train.clip_norm > 0) {
    const double norm =
        std::sqrt(std::accumulate(numbers.begin() + static_cast<std::ptrdiff_t>(squares), numbers.end(), 0.0)) * scale;
    if (norm > run_->train.clip_norm) scale *= run_->train.clip_norm / (norm + 1e-6);
  }
  const Clock::time_point updating = Clock::now();
  update_->apply(scale);
  note(SpanKind::compute, "update", updating);
  progress_.kept_weight = 0;
  progress_.kept_steps = 0;
}

// The first by name tells, the same on all workers.
void StageWorker::refuse_not_finite(const std::string& mine) {
  std::int64_t first = static_cast<std::int64_t>(plan_->parameters().size());
  const auto name_of = [&](std::size_t p) { return run_->graph.parameters()[plan_->parameters()[p].number].path; };
  for (std::size_t p = 0; p < plan_->parameters().size() && !mine.empty(); ++p) {
    if (name_of(p) == mine) first = static_cast<std::int64_t>(p);
  }
  together([&](const Duration& left) {
    all_reduce(options_.world, std::span(&first, 1), {.op = ReduceOp::min, .deadline = left});
  });
  throw Agreed(fmt::format("the gradient of '{}' is not finite (NaN or infinite); nothing was changed",
                           name_of(static_cast<std::size_t>(first))));
}

// Parameters that several workers have.
void StageWorker::share_new_values() {
  if (progress_.kept_steps > 0) return;
  for (std::size_t p = 0; p < plan_->parameters().size(); ++p) {
    const TrainedParameter& one = plan_->parameters()[p];
    const std::uint64_t tag = tag_of(plan_->tag_of_parameter(p) + one.parts.size(), 0);
    const torch::Tensor& own = module_->parameters_by_number()[one.number];
    for (const int other : one.others) {
      if (one.home == options_.worker) send(other, tag, own.detach());
      if (other != options_.worker) continue;
      const torch::NoGradGuard no_gradients;
      const std::size_t node = plan_->consumers().of_parameter[one.number].front().node;
      own.detach().copy_(receive(one.home, tag, node));
    }
  }
}

// --- what goes to and comes from others ---

std::uint64_t StageWorker::tag_of(std::uint64_t tag, std::int64_t micro_batch) const {
  return (tag << kBitsOfMicroBatch) + static_cast<std::uint64_t>(micro_batch);
}

void StageWorker::send(int to, std::uint64_t tag, const torch::Tensor& tensor) {
  if (to == options_.worker)
    here_[tag] = tensor;
  else
    options_.channel.send(to, tag, tensor);
}

// Where it does not come, that is told with what it would have been.
torch::Tensor StageWorker::receive(int from, std::uint64_t tag, std::size_t node) {
  if (from == options_.worker) {
    const auto found = here_.find(tag);
    TUTTI_ASSERT(found != here_.end());
    torch::Tensor tensor = std::move(found->second);
    here_.erase(found);
    return tensor;
  }
  const Clock::time_point began = Clock::now();
  const Awaited what{.from = from, .tag = tag, .node = node};
  try {
    torch::Tensor tensor = options_.channel.receive(what, deadline_of_step_);
    constexpr std::chrono::microseconds kWorthTelling{1};
    if (Clock::now() - began > kWorthTelling) note(SpanKind::waiting, fmt::format("for {}", id_of(from)), began);
    return tensor;
  } catch (const PeerError& error) {
    if (error.kind() == FailureKind::cancelled) throw;
    throw_wait(what, error);
  }
}

// Who is gone is known. Who is late may have waited himself.
void StageWorker::throw_wait(const Awaited& what, const PeerError& error) const {
  Wait wait{options_.worker, what};
  if (error.kind() != FailureKind::lost)
    wait = options_.channel.last_in_line(what);
  else if (!error.ranks().empty() && error.ranks().front().value != what.from)
    wait.what = {.from = error.ranks().front().value};
  const std::optional<std::size_t> node = wait.what.node ? wait.what.node : last_node_of(wait.what.from);
  Failure failure = error.failure();
  failure.ranks = {Rank{wait.what.from}};
  failure.message =
      fmt::format("worker '{}' waited for worker '{}'{}: {}", id_of(wait.by), id_of(wait.what.from),
                  node ? fmt::format(" and the node '{}'", run_->graph.nodes()[*node].path) : "", error.what());
  throw PeerError(failure);
}

// What all workers call together.
void StageWorker::together(const std::function<void(const Duration& left)>& call) const {
  try {
    call(deadline_of_step_.remaining());
  } catch (const PeerError& error) {
    if (error.kind() == FailureKind::cancelled || error.ranks().empty()) throw;
    throw_wait({.from = error.ranks().front().value}, error);
  }
}

// All others end as well, and hear why; who hears it leaves the telling to this one.
void StageWorker::fail(const std::exception& error) {
  const auto* of_peer = dynamic_cast<const PeerError*>(&error);
  const std::string why = error.what();
  // Forward, what is told names the node already.
  const std::string where = is_in_backward_ ? fmt::format("backward through {}: ", at_work_on()) : "";
  const std::string sentence = of_peer != nullptr ? why
                                                  : fmt::format("worker '{}': {}{}", id_of(options_.worker), where,
                                                                why.substr(0, why.find('\n')));
  if (!options_.ground->is_gone()) {
    options_.channel.abort({.kind = FailureKind::cancelled, .ranks = {options_.world.rank()}, .message = sentence});
    if (!options_.world.broken()) options_.world.cancel(sentence);
  }
  if (of_peer != nullptr) throw PeerError(of_peer->failure());
  if (dynamic_cast<const UsageError*>(&error) != nullptr) throw UsageError(sentence);
  throw Error(sentence);
}

void StageWorker::note(SpanKind kind, std::string what, Clock::time_point begin) {
  spans_.push_back({options_.worker, kind, std::move(what), begin, Clock::now()});
}

}  // namespace tutti::detail
