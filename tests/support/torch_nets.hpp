// Small networks to train in tests, and what is left of them in the end.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tutti::testing {

struct Mlp : torch::nn::Cloneable<Mlp> {
  Mlp() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(4, 6));
    out = register_module("out", torch::nn::Linear(6, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }

  torch::nn::Linear hidden{nullptr};
  torch::nn::Linear out{nullptr};
};

// Batch norm and dropout.
struct Noisy : torch::nn::Cloneable<Noisy> {
  explicit Noisy(double its_rate = 0.3) : rate(its_rate) { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    drop = register_module("drop", torch::nn::Dropout(rate));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(drop(torch::relu(norm(hidden(x))))); }

  double rate;
  torch::nn::Linear hidden{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear out{nullptr};
};

// The same one each time.
template <typename Net, typename... Arguments>
std::shared_ptr<Net> make_net(torch::ScalarType type, Arguments&&... arguments) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>(std::forward<Arguments>(arguments)...);
  net->to(type);
  return net;
}

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};
inline std::int64_t row_count(const Batch& batch) { return batch.data.size(0); }
template <typename Rows>
Batch slice_rows(const Batch& batch, const Rows& rows) {
  return {rows.of(batch.data), rows.of(batch.target)};
}

inline Batch draw_batch(std::int64_t rows, std::uint64_t seed, torch::ScalarType type = torch::kFloat64) {
  torch::manual_seed(seed + 100);
  return {torch::randn({rows, 4}, type), torch::randn({rows, 3}, type)};
}

// What training leaves: parameters and buffers, by name.
inline std::vector<std::pair<std::string, torch::Tensor>> contents_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> contents;
  for (const auto& item : module.named_parameters()) contents.emplace_back(item.key(), item.value().detach().clone());
  for (const auto& item : module.named_buffers()) contents.emplace_back(item.key(), item.value().detach().clone());
  return contents;
}
using Contents = std::vector<std::pair<std::string, torch::Tensor>>;

inline bool has_same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const torch::Tensor left = a.contiguous();
  const torch::Tensor right = b.contiguous();
  return left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

inline void expect_same_bits(const Contents& found, const Contents& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, expected[i].first);
    EXPECT_TRUE(has_same_bits(found[i].second, expected[i].second))
        << found[i].first << " differs by " << (found[i].second - expected[i].second).abs().max().item<double>();
  }
}
inline void expect_same_bits(const torch::nn::Module& found, const torch::nn::Module& expected) {
  expect_same_bits(contents_of(found), contents_of(expected));
}

inline void expect_close(const torch::nn::Module& found, const torch::nn::Module& expected, double tolerance) {
  const Contents a = contents_of(found);
  const Contents b = contents_of(expected);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].second.numel() == 0) continue;
    EXPECT_LE((a[i].second - b[i].second).abs().max().item<double>(), tolerance) << a[i].first;
  }
}

template <typename Net>
std::shared_ptr<Net> copy_of(const std::shared_ptr<Net>& net) {
  return std::dynamic_pointer_cast<Net>(net->clone());
}

// Every optimizer that tutti has kernels for; `other` are options for a second group of parameters.
struct OptimizerCase {
  std::string name;
  std::shared_ptr<torch::optim::OptimizerOptions> options;
  std::shared_ptr<torch::optim::OptimizerOptions> other;
};

inline std::vector<OptimizerCase> optimizer_cases() {
  const auto make = [](const char* name, const auto& options, const auto& other) {
    using Options = std::decay_t<decltype(options)>;
    return OptimizerCase{name, std::make_shared<Options>(options), std::make_shared<Options>(other)};
  };
  namespace optim = torch::optim;
  using Sgd = optim::SGDOptions;
  using Adam = optim::AdamOptions;
  using AdamW = optim::AdamWOptions;
  using RmsProp = optim::RMSpropOptions;
  using Adagrad = optim::AdagradOptions;
  return {
      make("sgd", Sgd(0.1), Sgd(0.05)),
      make("sgd, momentum", Sgd(0.1).momentum(0.9), Sgd(0.1)),
      make("sgd, dampening", Sgd(0.1).momentum(0.8).dampening(0.3), Sgd(0.1).momentum(0.5).dampening(0.1)),
      make("sgd, Nesterov, weight decay", Sgd(0.05).momentum(0.9).nesterov(true).weight_decay(0.01),
           Sgd(0.05).momentum(0.5)),
      make("adam", Adam(0.01), Adam(0.02).betas({0.8, 0.95})),
      make("adam, amsgrad", Adam(0.01).amsgrad(true), Adam(0.02)),
      make("adam, weight decay", Adam(0.01).weight_decay(0.1).eps(1e-6), Adam(0.02).amsgrad(true)),
      make("adamw", AdamW(0.01), AdamW(0.02).weight_decay(0.3)),
      make("adamw, amsgrad", AdamW(0.01).amsgrad(true), AdamW(0.02)),
      make("rmsprop", RmsProp(0.01), RmsProp(0.005).alpha(0.9)),
      make("rmsprop, momentum, weight decay", RmsProp(0.01).momentum(0.8).weight_decay(0.1), RmsProp(0.01)),
      make("rmsprop, centered", RmsProp(0.01).centered(true), RmsProp(0.01).centered(true).momentum(0.5)),
      make("adagrad", Adagrad(0.1), Adagrad(0.05)),
      make("adagrad, decay", Adagrad(0.1).lr_decay(0.05).initial_accumulator_value(0.5).weight_decay(0.1),
           Adagrad(0.2).initial_accumulator_value(0.5)),
  };
}

}  // namespace tutti::testing
