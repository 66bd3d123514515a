#include <tutti/train/evaluation.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/train/batch.hpp>

#include "evaluation_rows.hpp"

namespace tutti {
namespace {

// By a worker, between two looks at the clock.
constexpr std::int64_t kBatchesAtOnce = 16;

// A module in evaluation, until it is destroyed.
class InEvaluation {
 public:
  explicit InEvaluation(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
    for (const std::shared_ptr<torch::nn::Module>& one : module.modules(/*include_self=*/false))
      before_.emplace_back(one, one->is_training());
    module.eval();
  }
  // From the outside inwards, since a module passes it on to those in it.
  ~InEvaluation() {
    module_.train(was_training_);
    for (const auto& [module, was_training] : before_) module->train(was_training);
  }
  InEvaluation(const InEvaluation&) = delete;
  InEvaluation& operator=(const InEvaluation&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

// Modules of users may write to their buffers whenever they are called. So each worker has a copy of such a network,
// and each batch begins with the buffers that the network has: the same bits on any number of threads, and nothing is
// left behind.
class Seats {
 public:
  Seats(std::shared_ptr<GraphModule> net, int workers) : net_(std::move(net)) {
    const bool has_modules = std::ranges::any_of(
        net_->graph().nodes(), [](const GraphNode& node) { return node.resolved.make_module != nullptr; });
    if (!has_modules) return;
    for (int worker = 0; worker < workers; ++worker)
      copies_.push_back(std::dynamic_pointer_cast<GraphModule>(net_->clone()));
  }

  // For the next batch of a worker.
  GraphModule& operator[](int worker) const {
    if (copies_.empty()) return *net_;
    GraphModule& copy = *copies_[static_cast<std::size_t>(worker)];
    const torch::NoGradGuard no_gradients;
    auto buffers = copy.named_buffers();
    for (const auto& item : net_->named_buffers()) buffers[item.key()].copy_(item.value());
    return copy;
  }

 private:
  std::shared_ptr<GraphModule> net_;
  std::vector<std::shared_ptr<GraphModule>> copies_;  // by worker
};

// What the threads of a pass work on. Whoever misses the deadline still does when the pass has failed, so nothing of it
// is on the caller's stack.
struct EvaluationPass {
  std::shared_ptr<const Run> run;
  Seats seats;
  std::shared_ptr<const Dataset> rows;
  std::int64_t batch_rows = 0;
  std::size_t width = 0;     // of what a batch gives
  std::vector<double> sums;  // by batch

  void compute(int worker, std::int64_t batch) {
    const c10::InferenceMode no_gradients;
    const DataRows its = rows->rows(detail::batch_numbers(batch, batch_rows, rows->size()));
    const torch::Tensor output = seats[worker].forward(graph_inputs(*run, its)).front();
    detail::measure(*run, output, its.target, std::span(sums).subspan(static_cast<std::size_t>(batch) * width, width));
  }
};

}  // namespace

Evaluator::Evaluator(std::shared_ptr<const Run> run, const EvaluatorOptions& options)
    : run_(std::move(run)),
      options_(options),
      batch_rows_(detail::rows_at_once(*run_)),
      team_(options.threads, use_one_thread) {}

Evaluation Evaluator::evaluate(const std::shared_ptr<GraphModule>& module, const std::shared_ptr<const Dataset>& rows) {
  const std::int64_t batches = (rows->size() + batch_rows_ - 1) / batch_rows_;
  const std::size_t width = detail::evaluation_width(*run_);
  std::shared_ptr<EvaluationPass> pass;
  const int processes = options_.world == nullptr ? 1 : options_.world->size();
  const int process = options_.world == nullptr ? 0 : options_.world->rank().value;
  {
    const InEvaluation in_evaluation(*module);
    pass = std::make_shared<EvaluationPass>(
        EvaluationPass{run_, Seats(module, options_.threads), rows, batch_rows_, width,
                       std::vector<double>(static_cast<std::size_t>(batches) * width)});
    const OneThread one_thread;
    // Of all batches each process has one in so many, and of these each worker: some at a time, so that the deadline is
    // for these.
    const std::int64_t stride = std::int64_t{processes} * options_.threads;
    for (std::int64_t begin = 0; begin < batches; begin += stride * kBatchesAtOnce) {
      const std::int64_t end = std::min(batches, begin + stride * kBatchesAtOnce);
      team_.run([pass, first = begin + process, end, processes, stride](int worker) {
        for (std::int64_t batch = first + std::int64_t{processes} * worker; batch < end; batch += stride)
          pass->compute(worker, batch);
      });
    }
  }
  std::vector<double>& sums = pass->sums;
  if (options_.world != nullptr) all_reduce(*options_.world, sums);  // each batch is one process's, and 0 elsewhere
  return detail::evaluation_of(*run_, rows->size(), sums);
}

void Evaluator::for_each_output(const std::shared_ptr<GraphModule>& module, const Dataset& rows,
                                const std::function<void(const std::vector<torch::Tensor>&, const DataRows&)>& f) {
  const InEvaluation in_evaluation(*module);
  const Seats seats(module, 1);
  const OneThread one_thread;
  const c10::InferenceMode no_gradients;
  for (std::int64_t batch = 0; batch * batch_rows_ < rows.size(); ++batch) {
    const DataRows its = rows.rows(detail::batch_numbers(batch, batch_rows_, rows.size()));
    f(seats[0].forward(graph_inputs(*run_, its)), its);
  }
}

}  // namespace tutti
