// The networks of the graph suite, twice: as graphs, and written by hand with libtorch as one would without tutti.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <torch/nn/module.h>
#include <tutti/graph/graph.hpp>

namespace tutti::bench {

inline constexpr std::array<std::string_view, 3> kGraphModels{"mlp-256", "residual-cnn", "transformer-4"};

struct GraphModel {
  Graph graph;
  std::shared_ptr<torch::nn::Module> by_hand;
  std::function<torch::Tensor(const torch::Tensor&)> forward;  // of the one by hand
  torch::Tensor rows;
  torch::Tensor target;  // a class for each row, or for each position
};

GraphModel make_graph_model(std::string_view name, int batch);

}  // namespace tutti::bench
