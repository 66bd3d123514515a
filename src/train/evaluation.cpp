#include <tutti/train/evaluation.hpp>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/train/batch.hpp>

namespace tutti {
namespace {

// Enough rows for the full speed of a matrix product.
constexpr std::int64_t kLeastRows = 256;

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

std::vector<std::int64_t> batch_numbers(std::int64_t batch, std::int64_t batch_rows, std::int64_t rows) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(batch_rows, rows - batch * batch_rows)));
  std::iota(numbers.begin(), numbers.end(), batch * batch_rows);
  return numbers;
}

}  // namespace

Evaluator::Evaluator(const Run& run, const EvaluatorOptions& options)
    : run_(run),
      options_(options),
      batch_rows_(std::max(run.data.batch_size, kLeastRows)),
      team_(options.threads, use_one_thread) {}

Evaluation Evaluator::evaluate(GraphModule& module, const Dataset& rows) {
  const std::int64_t batches = (rows.size() + batch_rows_ - 1) / batch_rows_;
  // By batch: the loss times its weight, the weight, and of each metric sum and count.
  const std::size_t width = 2 + 2 * run_.metrics.size();
  std::vector<double> sums(static_cast<std::size_t>(batches) * width);
  const int processes = options_.world == nullptr ? 1 : options_.world->size();
  const int process = options_.world == nullptr ? 0 : options_.world->rank().value;
  {
    const InEvaluation in_evaluation(module);
    const OneThread one_thread;
    team_.run([&](int worker) {
      const c10::InferenceMode no_gradients;
      const std::int64_t first = std::int64_t{process} * options_.threads + worker;
      for (std::int64_t batch = first; batch < batches; batch += std::int64_t{processes} * options_.threads) {
        const std::vector<std::int64_t> numbers = batch_numbers(batch, batch_rows_, rows.size());
        const DataRows its = rows.rows(numbers);
        const torch::Tensor output = module.forward(graph_inputs(run_, its)).front();
        const std::span<double> mine = std::span(sums).subspan(static_cast<std::size_t>(batch) * width, width);
        const WeightedLoss loss = run_.loss.compute(output, its.target);
        mine[1] = loss.weight.value_or(static_cast<double>(numbers.size()));
        if (mine[1] > 0) mine[0] = loss.loss.item<double>() * mine[1];
        for (std::size_t m = 0; m < run_.metrics.size(); ++m) {
          const MetricSum sum = run_.metrics[m].metric.measure(output, its.target);
          mine[2 + 2 * m] = sum.sum;
          mine[3 + 2 * m] = sum.count;
        }
      }
    });
  }
  if (options_.world != nullptr) all_reduce(*options_.world, sums);  // each batch is one process's, and 0 elsewhere
  std::vector<double> all(width);
  for (std::size_t i = 0; i < sums.size(); ++i) all[i % width] += sums[i];
  Evaluation evaluation{.rows = rows.size(), .loss = all[0] / all[1], .metrics = {}};
  for (std::size_t m = 0; m < run_.metrics.size(); ++m)
    evaluation.metrics.push_back(
        {run_.metrics[m].name, value_of(run_.metrics[m].metric, {all[2 + 2 * m], all[3 + 2 * m]})});
  return evaluation;
}

void Evaluator::for_each_output(GraphModule& module, const Dataset& rows,
                                const std::function<void(const std::vector<torch::Tensor>&, const DataRows&)>& f) {
  const InEvaluation in_evaluation(module);
  const OneThread one_thread;
  const c10::InferenceMode no_gradients;
  for (std::int64_t batch = 0; batch * batch_rows_ < rows.size(); ++batch) {
    const DataRows its = rows.rows(batch_numbers(batch, batch_rows_, rows.size()));
    f(module.forward(graph_inputs(run_, its)), its);
  }
}

}  // namespace tutti
