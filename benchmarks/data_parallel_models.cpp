#include "data_parallel_models.hpp"

#include <array>
#include <vector>

#include <ATen/Context.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include "cli/arguments.hpp"

namespace tutti::bench {
namespace {

constexpr std::int64_t kClasses = 10;

torch::nn::Sequential mlp(std::int64_t hidden) {
  return torch::nn::Sequential(torch::nn::Linear(784, hidden), torch::nn::ReLU(), torch::nn::Linear(hidden, hidden),
                               torch::nn::ReLU(), torch::nn::Linear(hidden, kClasses));
}

torch::nn::Sequential mlp_256() { return mlp(256); }
torch::nn::Sequential mlp_1024() { return mlp(1024); }
torch::nn::Sequential mlp_2048() { return mlp(2048); }
torch::nn::Sequential mlp_50m() { return mlp(6690); }  // 50.1 million parameters

torch::nn::Sequential cnn() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3)), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2), torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3)),
                               torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                               torch::nn::Linear(32 * 5 * 5, 128), torch::nn::ReLU(), torch::nn::Linear(128, kClasses));
}

}  // namespace

torch::nn::Sequential make_model(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames{"mlp-256", "mlp-1024", "mlp-2048", "mlp-50m", "cnn"};
  constexpr std::array kModels{mlp_256, mlp_1024, mlp_2048, mlp_50m, cnn};
  torch::manual_seed(0);
  return kModels[cli::parse_choice("--model", name, kNames)]();
}

std::vector<std::int64_t> row_shape(std::string_view model) {
  return model == "cnn" ? std::vector<std::int64_t>{1, 28, 28} : std::vector<std::int64_t>{784};
}

Batch make_rows(std::string_view model, int count) {
  torch::manual_seed(1);
  std::vector<std::int64_t> shape = row_shape(model);
  shape.insert(shape.begin(), count);
  torch::Tensor data = torch::randn(shape);
  torch::Tensor target = torch::randint(kClasses, {count}, torch::kLong);
  return {std::move(data), std::move(target)};
}

torch::Tensor loss_of(torch::nn::SequentialImpl& net, const Batch& rows) {
  return torch::nn::functional::cross_entropy(net.forward(rows.data), rows.target);
}

}  // namespace tutti::bench
