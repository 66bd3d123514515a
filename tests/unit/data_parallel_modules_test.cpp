// Data-parallel steps of modules with tied weights, with buffers, with other optimizers, and with autocast.
#include <tutti/nn/data_parallel.hpp>

#include <atomic>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/large_batch.hpp"
#include "support/torch_nets.hpp"

namespace tutti::data_parallel_modules_test {
namespace {

using testing::Batch;
using ::testing::HasSubstr;
using testing::joined;
using testing::large_step;
using testing::make_optimizer;
using testing::Mlp;
using testing::mse;
using testing::Noisy;
using torch::Tensor;

// --- tied weights ---

// The way there and the way back have one weight. Its clones have so, too.
struct Tied : torch::nn::Cloneable<Tied> {
  Tied() { reset(); }
  void reset() override {
    encoder = register_parameter("encoder", torch::randn({4, 4}) / 2);
    decoder = register_parameter("decoder", encoder);
    bias = register_parameter("bias", torch::zeros(4));
  }
  Tensor forward(const Tensor& x) { return torch::tanh(x.matmul(encoder)).matmul(decoder.t()) + bias; }

  Tensor encoder;
  Tensor decoder;
  Tensor bias;
};

// Two variables over one memory: a clone has them apart.
struct TiedByMemory : torch::nn::Cloneable<TiedByMemory> {
  TiedByMemory() {
    reset();
    decoder->weight.set_data(encoder->weight.data());
  }
  void reset() override {
    encoder = register_module("encoder", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    decoder = register_module("decoder", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  }
  Tensor forward(const Tensor& x) { return decoder(torch::tanh(encoder(x))); }

  torch::nn::Linear encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};

// One layer, used twice.
struct UsedTwice : torch::nn::Cloneable<UsedTwice> {
  UsedTwice() { reset(); }
  void reset() override {
    layer = register_module("first", torch::nn::Linear(4, 4));
    register_module("second", layer);
  }
  Tensor forward(const Tensor& x) { return layer(torch::tanh(layer(x))); }

  torch::nn::Linear layer{nullptr};
};

const auto rebuild = [](auto& net, const Batch& rows) { return torch::mse_loss(net.forward(rows.data), rows.data); };

TEST(DataParallel, UpdatesATiedWeightOnceWithTheGradientOfAllItsUses) {
  for (const testing::OptimizerCase& one : testing::optimizer_cases()) {
    for (int replicas : {1, 3}) {
      SCOPED_TRACE(one.name + ", replicas " + std::to_string(replicas));
      for (bool from_factory : {false, true}) {
        auto net = testing::make_net<Tied>(torch::kFloat64);
        auto expected = testing::make_net<Tied>(torch::kFloat64);
        const auto make = [&, first = net]() mutable {
          auto made = first ? std::exchange(first, nullptr) : std::make_shared<Tied>();
          made->to(torch::kFloat64);
          return made;
        };
        auto parallel = from_factory ? DataParallel<Tied>(make, *one.options, {.replicas = replicas})
                                     : DataParallel<Tied>(net, *one.options, {.replicas = replicas});
        torch::autograd::variable_list once{expected->encoder, expected->bias};
        const auto optimizer = detail::make_optimizer({torch::optim::OptimizerParamGroup(once)}, *one.options);
        for (std::uint64_t step = 0; step < 4; ++step) {
          const Batch batch = testing::draw_batch(7, step);
          parallel.step(batch, rebuild);
          large_step(*expected, *optimizer, batch, rebuild);
          testing::expect_close(*net, *expected, 1e-9);
          EXPECT_EQ(net->encoder.data_ptr(), net->decoder.data_ptr());
        }
      }
    }
  }
}

TEST(DataParallel, KnowsTiedWeightsByTheirMemory) {
  auto net = std::make_shared<TiedByMemory>();
  auto expected = std::make_shared<TiedByMemory>();
  const Tensor start = torch::randn({4, 4}) / 2;
  {
    const torch::NoGradGuard no_grad;
    net->encoder->weight.copy_(start);
    expected->encoder->weight.copy_(start);
  }
  DataParallel parallel(net, torch::optim::AdamOptions(0.01), {.replicas = 3});
  torch::optim::Adam optimizer(std::vector<Tensor>{expected->encoder->weight}, torch::optim::AdamOptions(0.01));
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Batch batch = testing::draw_batch(7, step, torch::kFloat32);
    parallel.step(batch, rebuild);
    expected->zero_grad();
    rebuild(*expected, batch).backward();
    expected->encoder->weight.mutable_grad().add_(expected->decoder->weight.grad());
    optimizer.step();
    testing::expect_close(*net, *expected, 1e-5);
  }
}

TEST(DataParallel, TrainsALayerThatIsUsedTwice) {
  auto net = testing::make_net<UsedTwice>(torch::kFloat64);
  auto expected = testing::make_net<UsedTwice>(torch::kFloat64);
  DataParallel parallel(net, torch::optim::SGDOptions(0.1).momentum(0.9), {.replicas = 3});
  torch::optim::SGD optimizer(expected->layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Batch batch = testing::draw_batch(7, step);
    parallel.step(batch, rebuild);
    large_step(*expected, optimizer, batch, rebuild);
    testing::expect_close(*net, *expected, 1e-9);
  }
}

// --- buffers ---

// The running mean of a batch norm after one step over these rows.
Tensor running_mean(const Noisy& net, const Tensor& rows) {
  const torch::NoGradGuard no_grad;
  return 0.1 * torch::linear(rows, net.hidden->weight, net.hidden->bias).mean(0);
}

TEST(DataParallel, KeepsBuffersAsAskedFor) {
  const Batch batch = testing::draw_batch(7, 1);
  const auto every = [&](std::int64_t first, std::int64_t stride) {
    return batch.data.slice(0, first, c10::nullopt, stride);
  };
  const auto expect_mean = [&](const DataParallelOptions& options, const auto& expected_of) {
    auto net = testing::make_net<Noisy>(torch::kFloat64);
    const Tensor expected = expected_of(*net);
    DataParallel parallel(net, torch::optim::SGDOptions(0.1), options);
    parallel.step(batch, mse);
    EXPECT_LE((net->norm->running_mean - expected).abs().max().item<double>(), 1e-12);
    EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1);
  };
  const auto first_of_two = [&](Noisy& net) { return running_mean(net, every(0, 2)); };
  const auto mean_of_two = [&](Noisy& net) {
    return (running_mean(net, every(0, 2)) + running_mean(net, every(1, 2))) / 2;
  };
  expect_mean({.replicas = 2}, first_of_two);
  expect_mean({.replicas = 2, .buffers = Buffers::follow_first}, first_of_two);
  expect_mean({.replicas = 2, .buffers = Buffers::averaged}, mean_of_two);
  expect_mean({.replicas = 2, .buffers = Buffers::per_shard}, mean_of_two);
  expect_mean({.replicas = 1, .logical_shards = 2}, mean_of_two);
  expect_mean({.replicas = 2, .sync_batch_norm = true}, [&](Noisy& net) { return running_mean(net, batch.data); });
}

TEST(DataParallel, FollowsBuffersThatTheCallerSets) {
  auto net = testing::make_net<Noisy>(torch::kFloat64);
  DataParallel parallel(net, torch::optim::SGDOptions(0.0), {.replicas = 2, .logical_shards = 3});
  const Batch batch = testing::draw_batch(9, 1);
  parallel.step(batch, mse);
  net->norm->running_mean.fill_(10);
  const Tensor before = net->norm->running_mean.clone();
  parallel.step(batch, mse);
  EXPECT_GT(net->norm->running_mean.min().item<double>(), 8);
  EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 2);
}

TEST(DataParallel, TrainsWithoutRunningStatistics) {
  torch::nn::Sequential net(torch::nn::Linear(4, 3),
                            torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(3).track_running_stats(false)));
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .logical_shards = 3});
  const Batch batch = testing::draw_batch(9, 1, torch::kFloat32);
  const double first = parallel.step(batch, mse);
  for (int step = 0; step < 5; ++step) parallel.step(batch, mse);
  EXPECT_LT(parallel.step(batch, mse), first);
}

TEST(DataParallel, SyncBatchNormEqualsBatchNormOverTheWholeBatch) {
  for (int replicas : {1, 2, 3}) {
    SCOPED_TRACE(replicas);
    auto net = testing::make_net<Noisy>(torch::kFloat64, 0.0);
    auto expected = testing::copy_of(net);
    const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.2).momentum(0.9);
    DataParallel parallel(net, options, {.replicas = replicas, .sync_batch_norm = true});
    const auto optimizer = make_optimizer(*expected, options);
    std::uint64_t seed = 0;
    for (std::int64_t rows : {7, 12, 9, 6}) {
      const Batch batch = testing::draw_batch(rows, ++seed);
      EXPECT_NEAR(parallel.step(batch, mse), large_step(*expected, *optimizer, batch, mse), 1e-9);
      testing::expect_close(*net, *expected, 1e-9);
    }
  }
}

// What weighs nothing is still part of the statistics.
TEST(DataParallel, SyncBatchNormTakesRowsThatDoNotCount) {
  auto net = testing::make_net<Noisy>(torch::kFloat64, 0.0);
  auto expected = testing::copy_of(net);
  const torch::optim::SGDOptions options(0.2);
  DataParallel parallel(net, options, {.replicas = 2, .sync_batch_norm = true, .deadline = std::chrono::seconds(20)});
  const auto optimizer = make_optimizer(*expected, options);
  Batch batch = testing::draw_batch(8, 1);
  const auto is_even = [](std::int64_t rows) { return torch::arange(rows) % 2 == 0; };
  batch.target.index_put_({~is_even(8)}, 1e9);
  parallel.step(batch, [](Noisy& its, const Batch& rows) {
    const Tensor counted = (rows.target < 1e6).to(torch::kFloat64);
    const double count = counted.sum().item<double>();
    return WeightedLoss{((its.forward(rows.data) - rows.target).pow(2) * counted).sum() / std::max(count, 1.0), count};
  });
  large_step(*expected, *optimizer, batch, [&](Noisy& its, const Batch& rows) {
    const Tensor error = (its.forward(rows.data) - rows.target).pow(2);
    return error.index({is_even(8)}).mean();
  });
  testing::expect_close(*net, *expected, 1e-9);
}

// --- other optimizers, and autocast ---

struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  TORCH_ARG(double, lr) = 0.01;
};

class SignDescent : public torch::optim::Optimizer {
 public:
  explicit SignDescent(std::vector<Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<SignOptions>()) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    ++steps;
    for (torch::optim::OptimizerParamGroup& group : param_groups()) {
      for (Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) parameter.sub_(0.01 * parameter.grad().sign());
      }
    }
    return {};
  }
  int steps = 0;
};

class CountingSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int steps = 0;
};

template <typename Optimizer>
void expect_to_step_once(const std::function<std::shared_ptr<Optimizer>(const torch::nn::Module&)>& make) {
  for (int accumulate : {1, 2}) {
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    auto expected = testing::copy_of(net);
    const std::shared_ptr<Optimizer> mine = make(*net);
    const std::shared_ptr<Optimizer> theirs = make(*expected);
    DataParallel parallel(net, mine, {.replicas = 3, .clip_norm = 0.1, .accumulate = accumulate});
    EXPECT_THAT(parallel.describe(), HasSubstr("the optimizer is torch's own and steps once, on one thread"));
    std::vector<Batch> batches;
    for (std::uint64_t step = 0; step < 4; ++step) {
      batches.push_back(testing::draw_batch(7, step));
      parallel.step(batches.back(), mse);
      if (!parallel.report().updated) continue;
      large_step(*expected, *theirs, joined(batches), mse, 0.1);
      batches.clear();
      testing::expect_close(*net, *expected, 1e-9);
    }
    EXPECT_EQ(mine->steps, 4 / accumulate);
    for (const Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(DataParallel, StepsAnyOtherOptimizerOnce) {
  expect_to_step_once<SignDescent>(
      [](const torch::nn::Module& net) { return std::make_shared<SignDescent>(net.parameters()); });
  expect_to_step_once<CountingSgd>([](const torch::nn::Module& net) {
    return std::make_shared<CountingSgd>(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

TEST(DataParallel, AutocastComputesInBFloat16AndKeepsParameters) {
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  auto plain = testing::copy_of(net);
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .autocast = true});
  DataParallel without(plain, torch::optim::SGDOptions(0.1), {.replicas = 2});
  for (std::uint64_t step = 0; step < 10; ++step) {
    const Batch batch = testing::draw_batch(8, step, torch::kFloat32);
    const double expected = without.step(batch, mse);
    std::atomic<bool> is_cast = true;
    const double found = parallel.step(batch, [&](Mlp& its, const Batch& rows) {
      const Tensor output = its.forward(rows.data);
      if (output.scalar_type() != torch::kBFloat16) is_cast = false;
      return torch::mse_loss(output.to(torch::kFloat32), rows.target);
    });
    EXPECT_TRUE(is_cast);
    EXPECT_NEAR(found, expected, 0.05 * expected);
  }
  EXPECT_FALSE(at::autocast::is_cpu_enabled());
  for (const Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
  testing::expect_close(*net, *plain, 0.02);
}

TEST(DataParallel, SaysWhatLogicalShardsCost) {
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  EXPECT_THAT(DataParallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .logical_shards = 8}).describe(),
              HasSubstr("8 logical shards, the same bits on any number of replicas: 4 passes of 1/8 of the batch a "
                        "replica, and up to"));
}

TEST(DataParallel, CanBeMoved) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  DataParallel first(net, torch::optim::SGDOptions(0.1), {.replicas = 2});
  first.step(testing::draw_batch(4, 1), mse);
  DataParallel second = std::move(first);
  EXPECT_GT(second.step(testing::draw_batch(4, 1), mse), 0);
  EXPECT_EQ(second.module(), net);
}

}  // namespace
}  // namespace tutti::data_parallel_modules_test
