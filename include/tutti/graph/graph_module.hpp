// A graph that computes: a torch::nn::Module as any other, for a loop of one's own, DataParallel or DistributedModule.
//
//   auto net = std::make_shared<GraphModule>(graph, 7);     // parameters drawn from the seed 7
//   torch::Tensor logits = net->forward(images);
//   torch::optim::SGD optimizer(net->groups(torch::optim::SGDOptions(0.1)), torch::optim::SGDOptions(0.1));
//
// Parameters and buffers are named by the path of their node: "body.conv1.weight". What they hold at first depends on
// the seed and their path alone; TorchScript brings its values along.
//
// Where a value or a parameter has several consumers, their gradients add up in the order of the consumers' paths: the
// same bits in whatever order the nodes are computed. What a node draws in training is named by its path
// (RandomDraws), so it does not depend on what others draw. Each node is a submodule under its path, and can be put
// into evaluation by itself: net->named_modules()["body.norm"]->eval().
//
// Threads: as torch::nn::Module; several may call forward at a time while nothing changes the module.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <tutti/graph/graph.hpp>

namespace tutti {

// A value or a parameter, and what its consumers are given where there are several (graph/consumers.hpp): their
// gradients are told apart then, and add up in their order.
struct SharedTensor {
  torch::Tensor whole = {};
  std::vector<torch::Tensor> copies = {};

  const torch::Tensor& for_consumer(std::size_t index) const { return copies.empty() ? whole : copies[index]; }
};

// What is known while some nodes of a graph are computed: values by their number; of parameters those that several
// consumers share, or none at all.
struct GraphPass {
  std::vector<SharedTensor> values = {};
  std::vector<SharedTensor> parameters = {};
};

class GraphModule : public torch::nn::Module {
 public:
  explicit GraphModule(Graph graph, std::uint64_t seed = 0);
  // A part of the graph: the parameters and buffers of some of its nodes, by node; for compute().
  GraphModule(Graph graph, std::uint64_t seed, const std::vector<bool>& is_part);
  ~GraphModule() override;

  const Graph& graph() const { return *graph_; }

  // By the order of the graph's inputs and outputs.
  std::vector<torch::Tensor> forward(const std::vector<torch::Tensor>& inputs);
  // Of a graph with one input and one output.
  torch::Tensor forward(const torch::Tensor& input);

  // Computes some nodes of the part, in this order, from what the pass has; what comes out is there afterwards.
  void compute(std::span<const std::size_t> nodes, GraphPass& pass) const;
  // By the graph's numbers; undefined where no node of the part has it.
  const std::vector<torch::Tensor>& parameters_by_number() const { return parameters_by_number_; }

  // The parameters to train, in groups by their nodes' learning-rate factors: a group has a copy of the options, its
  // rate multiplied. For torch's own optimizers.
  std::vector<torch::optim::OptimizerParamGroup> groups(const torch::optim::OptimizerOptions& options) const;

  // Its ties are those of the original.
  std::shared_ptr<torch::nn::Module> clone(const c10::optional<torch::Device>& device = c10::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  struct Step;

  // Without a seed parameters are left as memory is; without a part it is the whole graph.
  GraphModule(Graph graph, std::optional<std::uint64_t> seed, const std::vector<bool>& is_part);
  void order_consumers();
  void compute(const Step& step, GraphPass& pass, std::uint64_t place) const;
  std::uint64_t next_place() const;

  std::shared_ptr<const Graph> graph_;  // steps point into it
  std::vector<bool> is_part_;           // by node; empty where all are
  std::vector<Step> steps_;             // by node
  std::vector<torch::Tensor> parameters_by_number_;
  // How many copies, for as many consumers, the order of whose gradients matters; 0 where it does not.
  std::vector<std::size_t> value_copies_;
  std::vector<std::size_t> parameter_copies_;
  std::vector<std::size_t> output_copies_;  // which copy is an output
  bool has_shared_parameters_ = false;
};

}  // namespace tutti
