// The network that DistributedModule and SyncedModule are tested with, and what it becomes over the whole batch.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/nn/distributed_module.hpp>
#include <tutti/nn/rows.hpp>

namespace tutti::testing {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(std::int64_t its_width = 16, double its_dropout = 0) : width(its_width), dropout(its_dropout) {
    reset();
  }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    second = register_module("second", torch::nn::Linear(width, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor hidden = torch::relu(first(x));
    if (uses_norm) hidden = norm(hidden);
    return second(torch::dropout(hidden, dropout, is_training()));
  }

  std::int64_t width;
  double dropout;
  bool uses_norm = false;
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Net);

using Batch = std::tuple<torch::Tensor, torch::Tensor>;

inline Net make_net(std::uint64_t seed = 1, double dropout = 0) {
  static std::mutex mutex;  // libtorch's generator is everybody's
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  Net net(16, dropout);
  net->to(torch::kFloat64);
  return net;
}

inline Batch make_batch(std::int64_t rows, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return {torch::randn({rows, 6}, generator, torch::kFloat64), torch::randint(0, 3, {rows}, generator, torch::kInt64)};
}

inline torch::Tensor loss_of(NetImpl& net, const Batch& rows) {
  return torch::nn::functional::cross_entropy(net.forward(std::get<0>(rows)), std::get<1>(rows));
}

inline Batch rows_of(const Batch& batch, Rank rank, int ranks) {
  const std::int64_t rows = row_count(batch);
  return slice_rows(batch, Rows::of_shard(rows, ranks, rank.value));
}

inline std::vector<torch::Tensor> values_of(torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& one : module.parameters()) values.push_back(one.detach().clone());
  for (const torch::Tensor& one : module.buffers()) values.push_back(one.detach().clone());
  return values;
}

inline void expect_near(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, double most,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), most) << what << ", tensor " << i;
}

inline void expect_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ", tensor " << i;
}

// Parameters after some steps of SGD with momentum over the whole batch.
inline std::vector<torch::Tensor> trained_whole(int steps, std::int64_t rows) {
  Net net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(*net, make_batch(rows, static_cast<std::uint64_t>(step))).backward();
    optimizer.step();
  }
  return values_of(*net);
}

// What a rank's call threw; nothing where it went well.
template <typename F>
std::string thrown_by(F f) {
  try {
    f();
  } catch (const PeerError& error) {
    return std::string("PeerError: ") + error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// A step with a closure that does something before its loss.
inline double closure_loss(DistributedModule& model, NetImpl& net, const Batch& batch,
                           const std::function<void()>& before) {
  return model.backward(batch, [&](const Batch& rows) {
    before();
    return loss_of(net, rows);
  });
}

}  // namespace tutti::testing
