// SyncedModule: a loop that takes any GradientSync.
#include <tutti/nn/synced_module.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/sync/collective_gradient_sync.hpp>
#include <tutti/sync/threaded_gradient_sync.hpp>

#include "support/distributed_net.hpp"

namespace tutti::synced_module_test {
namespace {

using namespace testing;  // the network
using ::testing::HasSubstr;

// The loop takes any GradientSync.
std::vector<torch::Tensor> trained_with(GradientSync& sync, int worker, int workers) {
  Net net = make_net();
  SyncedModule model(net.ptr(), sync);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 6; ++step) {
    const Batch mine = rows_of(make_batch(11, static_cast<std::uint64_t>(step)), Rank{worker}, workers);
    net->zero_grad(step % 2 == 0);
    model.backward(loss_of(*net, mine), static_cast<double>(row_count(mine)));
    optimizer.step();
  }
  return values_of(*net);
}

TEST(SyncedModule, WeightsArriveAsTheyAreWhereGradientsAreCompressed) {
  run_ranks(2, [](Communicator& world) {
    const double weight = world.rank() == Rank{0} ? 40'000 : 20'001;
    CollectiveGradientSync sync(std::move(world), {.compression = Float16{}});
    Net net = make_net();
    Net whole = make_net();
    ((40'000 * loss_of(*whole, make_batch(4, 0)) + 20'001 * loss_of(*whole, make_batch(4, 1))) / 60'001).backward();
    SyncedModule model(net.ptr(), sync);
    model.backward(loss_of(*net, make_batch(4, static_cast<std::uint64_t>(sync.worker_id()))), weight);
    const torch::Tensor difference = net->second->weight.grad() - whole->second->weight.grad();
    EXPECT_LE(difference.norm().item<double>(), 0.01 * whole->second->weight.grad().norm().item<double>());
  });
}

TEST(SyncedModule, RefusesParametersThatOnlyShareMemory) {
  Net net = make_net();
  net->norm->bias.set_data(net->norm->weight.detach());
  LocalGradientSync sync;
  EXPECT_THAT(thrown_by([&] { SyncedModule(net.ptr(), sync); }), HasSubstr("share memory, and not a tensor"));
}

TEST(SyncedModule, TrainsTheSameModelWithLocalThreadedAndCollectiveSync) {
  const std::vector<torch::Tensor> whole = trained_whole(6, 11);
  LocalGradientSync local;
  expect_near(trained_with(local, 0, 1), whole, 1e-9, "Local");
  for (int workers : {1, 2, 3, 5}) {
    run_parallel_workers(workers, [&](ThreadedGradientSync& sync) {
      expect_near(trained_with(sync, sync.worker_id(), workers), whole, 1e-9, fmt::format("Threaded {}", workers));
    });
    for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{})}) {
      run_ranks(workers,
                [&](Communicator& world) {
                  CollectiveGradientSync sync(std::move(world), {.algorithm = algorithm});
                  expect_near(trained_with(sync, sync.worker_id(), workers), whole, 1e-9,
                              fmt::format("Collective {}", workers));
                },
                {.shared_memory = false});
    }
  }
}

}  // namespace
}  // namespace tutti::synced_module_test
