// The loss and the metrics of a run over all rows of a dataset.
//
//   Evaluator evaluator(run, {.threads = 2});                  // shared, as all of this: threads may be late
//   Evaluation test = evaluator.evaluate(net, data.test);
//   test.loss; test.metrics;                       // {"accuracy", 0.87}
//
// Rows go through the network in batches of a size that the run alone gives, and sums are added up in their order: the
// same bits on any number of threads and processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/sync/worker_team.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

struct Evaluation {
  std::int64_t rows = 0;
  double loss = 0;
  std::vector<NamedNumber> metrics = {};
};

struct EvaluatorOptions {
  int threads = 1;
  Communicator* world = nullptr;  // processes that share the rows out, and all get the result
};

// One thread at a time.
class Evaluator {
 public:
  Evaluator(std::shared_ptr<const Run> run, const EvaluatorOptions& options);

  // The module is in evaluation meanwhile, and afterwards as it was.
  Evaluation evaluate(const std::shared_ptr<GraphModule>& module, const std::shared_ptr<const Dataset>& rows);

  // What the graph computes of the rows, batch by batch and in order, on the caller's thread: for predictions. All
  // batches are of this process.
  void for_each_output(const std::shared_ptr<GraphModule>& module, const Dataset& rows,
                       const std::function<void(const std::vector<torch::Tensor>& outputs, const DataRows& batch)>& f);

 private:
  std::shared_ptr<const Run> run_;
  EvaluatorOptions options_;
  std::int64_t batch_rows_;
  WorkerTeam team_;
};

}  // namespace tutti
