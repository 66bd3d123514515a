// torch's optimizers, carried out by tutti's kernels, beside themselves.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/nn/data_parallel.hpp>

#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::torch_optimizer_test {
namespace {

using testing::Batch;
using ::testing::HasSubstr;
using testing::Mlp;

torch::Tensor loss_of(Mlp& net, const Batch& rows) { return torch::mse_loss(net.forward(rows.data), rows.target); }

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// One for each layer; the second has options of its own.
ParamGroups groups_of(const Mlp& net, const testing::OptimizerCase& one) {
  ParamGroups groups;
  groups.emplace_back(net.hidden->parameters());
  groups.emplace_back(net.out->parameters(), one.other->clone());
  return groups;
}

// The whole batch, by hand.
double torch_step(Mlp& net, torch::optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  const torch::Tensor loss = loss_of(net, batch);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

TEST(TorchOptimizer, KernelsDoAsTorchDoesOverAHundredSteps) {
  for (const testing::OptimizerCase& one : testing::optimizer_cases()) {
    SCOPED_TRACE(one.name);
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    auto expected = testing::copy_of(net);
    DataParallel parallel(net, groups_of(*net, one), *one.options, {.replicas = 1});
    EXPECT_THAT(parallel.describe(), ::testing::Not(HasSubstr("steps once")));
    const auto optimizer = detail::make_optimizer(groups_of(*expected, one), *one.options);
    for (std::uint64_t step = 0; step < 100; ++step) {
      if (step == 50) {
        for (torch::optim::Optimizer* its : {&parallel.optimizer(), optimizer.get()}) {
          for (torch::optim::OptimizerParamGroup& group : its->param_groups())
            group.options().set_lr(group.options().get_lr() / 4);
        }
      }
      const Batch batch = testing::draw_batch(5, step);
      EXPECT_NEAR(parallel.step(batch, loss_of), torch_step(*expected, *optimizer, batch), 1e-9);
      testing::expect_close(*net, *expected, 1e-9);
      if (HasFailure()) FAIL() << "step " << step;
    }
  }
}

TEST(TorchOptimizer, FollowsASchedule) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  auto expected = testing::copy_of(net);
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.2).momentum(0.9);
  DataParallel parallel(net, options, {.replicas = 2});
  torch::optim::SGD optimizer(expected->parameters(), options);
  torch::optim::StepLR schedule(parallel.optimizer(), 3, 0.5);
  torch::optim::StepLR expected_schedule(optimizer, 3, 0.5);
  for (std::uint64_t step = 0; step < 12; ++step) {
    const Batch batch = testing::draw_batch(6, step);
    parallel.step(batch, loss_of);
    torch_step(*expected, optimizer, batch);
    schedule.step();
    expected_schedule.step();
    testing::expect_close(*net, *expected, 1e-9);
  }
  const auto lr_of = [](torch::optim::Optimizer& its) { return its.param_groups()[0].options().get_lr(); };
  EXPECT_EQ(lr_of(parallel.optimizer()), lr_of(optimizer));
  EXPECT_LT(lr_of(optimizer), 0.05);
}

TEST(TorchOptimizer, GoesOnFromAFileWithTheSameBits) {
  for (const testing::OptimizerCase& one : testing::optimizer_cases()) {
    SCOPED_TRACE(one.name);
    auto net = testing::make_net<Mlp>(torch::kFloat32);
    DataParallel parallel(net, groups_of(*net, one), *one.options, {.replicas = 2});
    const auto train = [](auto& trained, std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t step = first; step < end; ++step)
        trained.step(testing::draw_batch(6, step, torch::kFloat32), loss_of);
    };
    train(parallel, 0, 4);
    std::stringstream file;
    std::stringstream module_file;
    torch::save(parallel.optimizer(), file);
    torch::save(net, module_file);

    auto other = std::make_shared<Mlp>();
    DataParallel resumed(other, groups_of(*other, one), *one.options, {.replicas = 2});
    train(resumed, 50, 52);  // into the middle of something else
    torch::load(resumed.optimizer(), file);
    torch::load(other, module_file);
    train(parallel, 4, 9);
    train(resumed, 4, 9);
    testing::expect_same_bits(*other, *net);
  }
}

TEST(TorchOptimizer, SaysWhichOptionCannotBeAndChangesNothing) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  DataParallel parallel(net, torch::optim::SGDOptions(0.1).momentum(0.9), {.replicas = 2});
  const Batch batch = testing::draw_batch(6, 1);
  parallel.step(batch, loss_of);
  const testing::Contents before = testing::contents_of(*net);
  parallel.optimizer().param_groups()[0].options().set_lr(-1);
  EXPECT_EQ(testing::usage_error([&] { parallel.step(batch, loss_of); }),
            "sgd: lr: expected a number from 0 on, found -1");
  testing::expect_same_bits(testing::contents_of(*net), before);
  parallel.optimizer().param_groups()[0].options().set_lr(0.1);
  EXPECT_GT(parallel.step(batch, loss_of), 0);
}

TEST(TorchOptimizer, RefusesOptionsThatTorchRefuses) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  EXPECT_THAT(testing::usage_error([&] { DataParallel parallel(net, torch::optim::SGDOptions(-1)); }),
              HasSubstr("Invalid learning rate: -1"));
}

}  // namespace
}  // namespace tutti::torch_optimizer_test
