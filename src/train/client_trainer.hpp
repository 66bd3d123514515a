// Who computes the steps of a client of a federated run: one worker, or replicas, as the strategy's `inner` says.
//
//   trainer->begin({.rule = rule, .mu = 0.01, .client = 17, .draw = 3});     // the network has the server's parameters
//   for (...) sums += trainer->step(rows, rate_factor);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/kernels/optimizer.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

struct ClientFit {
  OptimizerRule rule = {};
  double mu = 0;  // of FedProx
  std::int64_t client = 0;
  std::int64_t draw = 0;
};

struct ClientStepNumbers {
  double loss = 0;  // the mean of its rows
  double weight = 0;
  std::vector<MetricSum> metrics = {};
};

// One thread at a time.
class ClientTrainer {
 public:
  virtual ~ClientTrainer() = default;

  // An optimizer that has seen nothing yet.
  virtual void begin(const ClientFit& fit) = 0;
  // With the rule's rate times a factor.
  virtual ClientStepNumbers step(const DataRows& rows, double rate_factor) = 0;
};

std::unique_ptr<ClientTrainer> make_client_trainer(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net);

}  // namespace tutti::detail
