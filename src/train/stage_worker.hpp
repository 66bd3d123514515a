// One worker of a ModelParallel run: computes its stages, micro-batch by micro-batch, in the order that the plan gives
// it; values go on to the stages that need them, gradients back to those they came from. At the end of a step all
// workers agree on whether there is an update, and each carries it out on the parameters that have their home there.
//
//   StageWorker worker(run, plan, {.worker = 1, .world = world, .channel = *channel});
//   WorkerReport report = worker.step(batch, is_interrupted);      // all workers
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/parameter_update.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>

#include "ground.hpp"
#include "pipeline_plan.hpp"
#include "stage_channel.hpp"
#include "training.hpp"

namespace tutti::detail {

struct StageWorkerOptions {
  int worker = 0;
  Communicator& world;  // its ranks are the workers
  StageChannel& channel;
  std::shared_ptr<Ground> ground;  // the world and the channel; who calls a worker stays on it
};

// Batches of an evaluation that are under way at once, at most; the deadline is for these.
inline constexpr std::int64_t kEvaluatedAtOnce = 16;

// Misuse that all workers have found together: nobody has to be told.
class Agreed : public UsageError {
 public:
  using UsageError::UsageError;
};

// The rows of a step; none where the worker needs none.
struct WorkerBatch {
  std::int64_t rows = 0;
  DataRows data = {};
};

// The same on all workers, but for the spans.
struct WorkerReport {
  double loss = 0;
  std::vector<NamedNumber> metrics = {};
  bool is_interrupted = false;
  std::vector<StepSpan> spans = {};
};

// One thread at a time.
class StageWorker {
 public:
  StageWorker(std::shared_ptr<const Run> run, std::shared_ptr<const PipelinePlan> plan,
              const StageWorkerOptions& options);

  // Weights to begin with.
  void fill(const ParameterSet& weights);
  double set_rate(double factor);
  // Where one of the workers fails, all of them throw, and nothing works any more.
  WorkerReport step(const WorkerBatch& batch, bool is_interrupted);
  Evaluation evaluate(const Dataset& rows);
  // What this worker has; the first one's has counts for all.
  void save(ParameterSet& state) const;
  // What all of them have, by worker; on the first alone.
  std::vector<ParameterSet> gather_states();
  void restore(const ParameterSet& state);

  // What it computes at the moment, for messages: "the nodes 'hidden' to 'act'"; nothing in between. For any thread.
  std::string at_work_on() const;

 private:
  using Clock = std::chrono::steady_clock;
  using SpanKind = event::SpanEnded::Kind;

  // What backward needs of a forward pass.
  struct Live {
    std::vector<torch::Tensor> taken = {};                               // by intake; where it is computed anew
    std::vector<std::vector<std::vector<torch::Tensor>>> leaves = {};    // by intake and run: of each consumer
    std::vector<std::pair<std::size_t, torch::Tensor>> parameters = {};  // by part
    std::map<std::size_t, SharedTensor> values = {};                     // that others have gradients of
    torch::Tensor loss = {};
    double weight = 0;
  };
  // Of the stage that computes the loss, over its micro-batches.
  struct Sums {
    double loss = 0;
    double weight = 0;
    std::vector<MetricSum> metrics = {};
  };

  const std::string& id_of(int worker) const;
  std::optional<std::size_t> last_node_of(int worker) const;
  std::string nodes_of(std::size_t stage) const;
  const CutStage& stage(std::size_t number) const { return plan_->cut().stages[number]; }
  std::int64_t rows_of(std::int64_t micro_batch) const;
  std::int64_t own_rows(const StageTask& task) const;

  void run_tasks(const WorkerBatch& batch);
  void forward(const StageTask& task, const WorkerBatch& batch);
  void backward(const StageTask& task, const WorkerBatch& batch);
  std::vector<torch::Tensor> take_in(const StageTask& task, const DataRows& data, std::int64_t first_row);
  Live compute(const StageTask& task, const std::vector<torch::Tensor>& taken, GraphPass& pass);
  void add_loss(Live& live, const GraphPass& pass, const StageTask& task, const DataRows& data);
  void hand_out(const StageTask& task, const GraphPass& pass);
  void take_gradients(const StageTask& task, Live& live, torch::autograd::variable_list& roots,
                      torch::autograd::variable_list& gradients);
  void add_to_sum(std::size_t part, const torch::Tensor& parameter, torch::Tensor gradient);
  std::vector<torch::Tensor> sum_of_parts();
  void agree(WorkerReport& report);
  [[noreturn]] void refuse_not_finite(const std::string& mine);
  void share_new_values();
  void evaluate_stage(const StageTask& task, const DataRows& data, std::span<double> sums);

  void send(int to, std::uint64_t tag, const torch::Tensor& tensor);
  torch::Tensor receive(int from, std::uint64_t tag, std::size_t node);
  [[noreturn]] void throw_wait(const Awaited& what, const PeerError& error) const;
  void together(const std::function<void(const Duration& left)>& call) const;
  [[noreturn]] void fail(const std::exception& error);
  void note(SpanKind kind, std::string what, Clock::time_point begin);
  std::uint64_t tag_of(std::uint64_t tag, std::int64_t micro_batch) const;

  std::shared_ptr<const Run> run_;
  std::shared_ptr<const PipelinePlan> plan_;
  StageWorkerOptions options_;
  Deadline deadline_of_step_;
  bool recomputes_;
  std::shared_ptr<GraphModule> module_;
  std::unique_ptr<torch::optim::OptimizerOptions> rule_;
  std::vector<std::size_t> own_parameters_;  // of the plan's: those at home here
  std::optional<ParameterUpdate> update_;
  std::vector<double> rates_;
  std::vector<std::size_t> first_part_;  // of each of the plan's parameters, among all parts
  UpdateProgress progress_;

  static constexpr std::size_t kNoStage = std::numeric_limits<std::size_t>::max();
  std::atomic<std::size_t> at_stage_ = kNoStage;

  // Of the step in progress.
  std::int64_t batch_rows_ = 0;
  bool is_evaluating_ = false;
  bool is_in_backward_ = false;
  std::map<std::int64_t, WorkOrder> orders_;  // by micro-batches
  std::map<std::pair<std::size_t, std::int64_t>, Live> live_;
  std::map<std::uint64_t, torch::Tensor> here_;  // from one of its stages to another
  std::vector<torch::Tensor> part_sums_;         // by part
  Sums sums_;
  std::vector<StepSpan> spans_;
};

}  // namespace tutti::detail
