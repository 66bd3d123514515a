// Of a worker: what is made of what it has learnt. Evaluations, and checkpoints.
#include <algorithm>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/parameter_sets.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "evaluation_rows.hpp"
#include "saved_tensors.hpp"
#include "stage_worker.hpp"

namespace tutti::detail {

// --- evaluations ---

Evaluation StageWorker::evaluate(const Dataset& rows) {
  const std::int64_t batch_rows = rows_at_once(*run_);
  const std::int64_t batches = (rows.size() + batch_rows - 1) / batch_rows;
  const std::size_t width = evaluation_width(*run_);
  std::vector<double> sums(static_cast<std::size_t>(batches) * width);
  const bool needs_rows = plan_->needs_rows(options_.worker);
  const SavedTensors buffers = saved(module_->buffers());  // modules of users may write to theirs
  module_->eval();
  is_evaluating_ = true;
  deadline_of_step_ = Deadline::after(run_->train.deadline);
  try {
    const c10::InferenceMode no_gradients;
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      batch_rows_ = std::min(batch_rows, rows.size() - batch * batch_rows);
      DataRows its;
      if (needs_rows) options_.ground->aside([&] { its = rows.rows(batch_numbers(batch, batch_rows, rows.size())); });
      put_back(buffers);
      for (std::size_t s = 0; s < plan_->cut().stages.size(); ++s) {
        if (stage(s).worker != options_.worker || stage(s).replica > 0) continue;
        evaluate_stage({s, batch, Pass::forward}, its,
                       std::span(sums).subspan(static_cast<std::size_t>(batch) * width, width));
      }
      // Who is fast does not run away from the others.
      if (batch % kEvaluatedAtOnce == kEvaluatedAtOnce - 1) {
        together([&](const Duration& left) { barrier(options_.world, {.deadline = left}); });
        options_.channel.finish(deadline_of_step_);
        deadline_of_step_ = Deadline::after(run_->train.deadline);
      }
    }
    put_back(buffers);
    // Each is one worker's.
    together([&](const Duration& left) { all_reduce(options_.world, sums, {.deadline = left}); });
    options_.channel.finish(deadline_of_step_);
  } catch (const std::exception& error) {
    fail(error);
  }
  is_evaluating_ = false;
  module_->train();
  return evaluation_of(*run_, rows.size(), sums);
}

void StageWorker::evaluate_stage(const StageTask& task, const DataRows& data, std::span<double> sums) {
  GraphPass pass;
  at_stage_ = task.stage;
  (void)compute(task, take_in(task, data, 0), pass);
  at_stage_ = kNoStage;
  hand_out(task, pass);
  if (!plan_->has_loss(task.stage)) return;
  const torch::Tensor& output = pass.values[run_->graph.outputs().front().value].whole;
  options_.ground->aside([&] { measure(*run_, output, data.target, sums); });
}

// --- checkpoints ---

void StageWorker::save(ParameterSet& state) const {
  update_->save(state);
  // What is not trained is told by whoever computes it first.
  const auto named = module_->named_buffers();
  for (std::size_t n = 0; n < plan_->cut().stage_of.size(); ++n) {
    if (stage(plan_->cut().stage_of[n]).worker != options_.worker) continue;
    const std::string prefix = run_->graph.nodes()[n].path + ".";
    for (const auto& item : named) {
      if (item.key().starts_with(prefix)) add_tensor(state, item.key(), item.value());
    }
  }
  for (std::size_t i = 0; i < run_->graph.parameters().size(); ++i) {
    const std::vector<Consumer>& consumers = plan_->consumers().of_parameter[i];
    if (!run_->graph.parameters()[i].is_frozen || consumers.empty()) continue;
    if (stage(plan_->cut().stage_of[consumers.front().node]).worker == options_.worker)
      add_tensor(state, run_->graph.parameters()[i].path, module_->parameters_by_number()[i]);
  }
  if (options_.worker == 0) save_progress(state, progress_);
}

std::vector<ParameterSet> StageWorker::gather_states() {
  ParameterSet mine;
  save(mine);
  std::vector<ParameterSet> all;
  deadline_of_step_ = Deadline::after(run_->train.deadline);
  try {
    together([&](const Duration& left) { all = gather(options_.world, mine, {.deadline = left}); });
  } catch (const std::exception& error) {
    fail(error);
  }
  return all;
}

void StageWorker::restore(const ParameterSet& state) {
  const UpdateProgress progress = progress_in(state);
  const bool goes_on = progress.kept_steps > 0 && progress.kept_steps < run_->train.accumulate;
  fill_module(state, *module_);  // parameters of others, too, and buffers
  update_->restore(state, goes_on);
  progress_ = {.steps = progress.steps,
               .kept_steps = goes_on ? progress.kept_steps : 0,
               .kept_weight = goes_on ? progress.kept_weight : 0};
}

}  // namespace tutti::detail
