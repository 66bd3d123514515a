#include "graph_models.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>
#include <tutti/graph/graph_builder.hpp>

#include "cli/arguments.hpp"

namespace tutti::bench {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

GraphModel mlp(int batch) {
  const Graph graph = GraphBuilder()
                          .input("x", {784})
                          .node("hidden1", "linear", {"x"}, {{"units", 256}})
                          .node("act1", "relu", {"hidden1"})
                          .node("hidden2", "linear", {"act1"}, {{"units", 256}})
                          .node("act2", "relu", {"hidden2"})
                          .node("logits", "linear", {"act2"}, {{"units", 10}})
                          .output("logits")
                          .build();
  nn::Sequential net(nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(), nn::Linear(256, 10));
  return {graph, net.ptr(), [net](const Tensor& x) mutable { return net->forward(x); }, torch::randn({batch, 784}),
          torch::randint(10, {batch}, torch::kInt64)};
}

// --- a residual network ---

constexpr std::int64_t kChannels = 16;

struct BlockImpl : nn::Module {
  BlockImpl()
      : conv1(register_module("conv1", conv())),
        norm1(register_module("norm1", nn::BatchNorm2d(kChannels))),
        conv2(register_module("conv2", conv())),
        norm2(register_module("norm2", nn::BatchNorm2d(kChannels))) {}
  static nn::Conv2d conv() { return nn::Conv2d(nn::Conv2dOptions(kChannels, kChannels, 3).padding(1).bias(false)); }
  Tensor forward(const Tensor& x) { return torch::relu(x + norm2(conv2(torch::relu(norm1(conv1(x)))))); }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
};
TORCH_MODULE(Block);

struct ResidualImpl : nn::Module {
  ResidualImpl()
      : stem(register_module("stem", nn::Conv2d(nn::Conv2dOptions(1, kChannels, 3).padding(1)))),
        first(register_module("first", Block())),
        pool(register_module("pool", nn::MaxPool2d(2))),
        second(register_module("second", Block())),
        logits(register_module("logits", nn::Linear(kChannels, 10))) {}
  Tensor forward(const Tensor& x) { return logits(second(pool(first(stem(x)))).mean({2, 3})); }
  nn::Conv2d stem;
  Block first;
  nn::MaxPool2d pool;
  Block second;
  nn::Linear logits;
};
TORCH_MODULE(Residual);

GraphModel residual(int batch) {
  const nlohmann::ordered_json conv{{"filters", kChannels}, {"kernel", 3}, {"padding", 1}, {"bias", false}};
  const auto block = [&](const std::string& x) {
    return GraphBuilder()
        .node("conv1", "conv2d", {x}, conv)
        .node("norm1", "batch_norm", {"conv1"})
        .node("act1", "relu", {"norm1"})
        .node("conv2", "conv2d", {"act1"}, conv)
        .node("norm2", "batch_norm", {"conv2"})
        .node("sum", "add", {x, "norm2"})
        .node("act2", "relu", {"sum"})
        .output("act2");
  };
  const Graph graph = GraphBuilder()
                          .input("x", {1, 28, 28})
                          .node("stem", "conv2d", {"x"}, {{"filters", kChannels}, {"kernel", 3}, {"padding", 1}})
                          .graph("first", {"stem"}, block("stem"))
                          .node("pool", "max_pool2d", {"first"}, {{"kernel", 2}})
                          .graph("second", {"pool"}, block("pool"))
                          .node("mean", "mean", {"second"}, {{"dim", {1, 2}}})
                          .node("logits", "linear", {"mean"}, {{"units", 10}})
                          .output("logits")
                          .build();
  Residual net;
  return {graph, net.ptr(), [net](const Tensor& x) mutable { return net->forward(x); },
          torch::randn({batch, 1, 28, 28}), torch::randint(10, {batch}, torch::kInt64)};
}

// --- a transformer of four blocks, over characters ---

constexpr std::int64_t kPositions = 64;
constexpr std::int64_t kUnits = 128;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kTokens = 96;

struct LayerImpl : nn::Module {
  LayerImpl()
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kUnits})))),
        in(register_module("in", nn::Linear(kUnits, 3 * kUnits))),
        out(register_module("out", nn::Linear(kUnits, kUnits))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kUnits})))),
        wide(register_module("wide", nn::Linear(kUnits, 4 * kUnits))),
        narrow(register_module("narrow", nn::Linear(4 * kUnits, kUnits))) {}
  Tensor attend(const Tensor& x, const Tensor& mask) {
    const auto heads = [&](const Tensor& one) {
      return one.view({x.size(0), kPositions, kHeads, kUnits / kHeads}).transpose(1, 2);
    };
    const std::vector<Tensor> all = in(x).chunk(3, -1);
    Tensor scores = torch::matmul(heads(all[0]) * (1 / std::sqrt(static_cast<double>(kUnits / kHeads))),
                                  heads(all[1]).transpose(2, 3));
    scores = scores.masked_fill(mask, -std::numeric_limits<double>::infinity());
    const Tensor seen = torch::matmul(torch::softmax(scores, -1), heads(all[2])).transpose(1, 2);
    return out(seen.reshape({x.size(0), kPositions, kUnits}));
  }
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const Tensor middle = x + attend(norm1(x), mask);
    return middle + narrow(torch::gelu(wide(norm2(middle))));
  }
  nn::LayerNorm norm1;
  nn::Linear in, out;
  nn::LayerNorm norm2;
  nn::Linear wide, narrow;
};
TORCH_MODULE(Layer);

struct TransformerImpl : nn::Module {
  TransformerImpl()
      : embed(register_module("embed", nn::Embedding(kTokens, kUnits))),
        places(register_parameter("places", torch::randn({kPositions, kUnits}) * 0.02)),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kUnits})))),
        logits(register_module("logits", nn::Linear(kUnits, kTokens))),
        mask(torch::ones({kPositions, kPositions}, torch::kBool).triu(1)) {
    for (int i = 0; i < 4; ++i) layers.push_back(register_module("layer" + std::to_string(i), Layer()));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = embed(tokens) + places;
    for (Layer& layer : layers) x = layer(x, mask);
    return logits(norm(x));
  }
  nn::Embedding embed;
  Tensor places;
  std::vector<Layer> layers;
  nn::LayerNorm norm;
  nn::Linear logits;
  Tensor mask;
};
TORCH_MODULE(Transformer);

GraphModel transformer(int batch) {
  GraphBuilder builder;
  builder.input("tokens", {kPositions}, ValueType::int64)
      .node("embed", "embedding", {"tokens"}, {{"entries", kTokens}, {"units", kUnits}})
      .node("block0", "positional_embedding", {"embed"});
  for (int i = 1; i <= 4; ++i) {
    builder.node("block" + std::to_string(i), "transformer_block", {"block" + std::to_string(i - 1)},
                 {{"heads", kHeads}, {"causal", true}});
  }
  const Graph graph = builder.node("norm", "layer_norm", {"block4"})
                          .node("logits", "linear", {"norm"}, {{"units", kTokens}})
                          .output("logits")
                          .build();
  Transformer net;
  return {graph, net.ptr(), [net](const Tensor& x) mutable { return net->forward(x); },
          torch::randint(kTokens, {batch, kPositions}, torch::kInt64),
          torch::randint(kTokens, {batch, kPositions}, torch::kInt64)};
}

}  // namespace

GraphModel make_graph_model(std::string_view name, int batch) {
  constexpr std::array kModels{mlp, residual, transformer};
  torch::manual_seed(0);
  return kModels[cli::parse_choice("--model", name, kGraphModels)](batch);
}

}  // namespace tutti::bench
