// Parameters that each replica has to itself, and replicas of several processes, beside the same written out by hand.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/nn/data_parallel.hpp>

#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_parallel_private_test {
namespace {

using testing::Batch;
using testing::make_net;
using testing::Mlp;

constexpr std::int64_t kRows = 11;

Batch batch_of(std::uint64_t step) {
  torch::manual_seed(100 + step);
  return {torch::randn({kRows, 4}, torch::kFloat64), torch::randint(3, {kRows})};
}

torch::Tensor loss_of(Mlp& net, const Batch& rows) {
  return torch::nn::functional::cross_entropy(net.forward(rows.data), rows.target);
}

bool is_private(const std::string& name) { return name.starts_with("hidden."); }

std::vector<torch::Tensor> parameters_of(torch::nn::Module& net, bool wanted_private) {
  std::vector<torch::Tensor> found;
  for (const auto& item : net.named_parameters()) {
    if (is_private(item.key()) == wanted_private) found.push_back(item.value());
  }
  return found;
}

// Each replica a whole net of its own: the shared gradients are averaged by rows, the private ones are left alone.
std::vector<std::shared_ptr<Mlp>> by_hand(int replicas, int steps) {
  std::vector<std::shared_ptr<Mlp>> nets;
  std::vector<torch::optim::Adam> optimizers;
  for (int r = 0; r < replicas; ++r) {
    nets.push_back(make_net<Mlp>(torch::kFloat64));
    optimizers.emplace_back(nets.back()->parameters(), torch::optim::AdamOptions(0.05));
  }
  for (int step = 0; step < steps; ++step) {
    const Batch batch = batch_of(static_cast<std::uint64_t>(step));
    std::vector<std::vector<torch::Tensor>> shared;
    for (int r = 0; r < replicas; ++r) {
      const Rows rows = Rows::of_shard(kRows, replicas, r);
      Mlp& net = *nets[static_cast<std::size_t>(r)];
      net.zero_grad(true);
      loss_of(net, slice_rows(batch, rows)).backward();
      std::vector<torch::Tensor>& its = shared.emplace_back();
      for (const torch::Tensor& parameter : parameters_of(net, false))
        its.push_back(parameter.grad() * (static_cast<double>(rows.count) / static_cast<double>(kRows)));
    }
    for (int r = 0; r < replicas; ++r) {
      const std::vector<torch::Tensor> own = parameters_of(*nets[static_cast<std::size_t>(r)], false);
      for (std::size_t i = 0; i < own.size(); ++i) {
        torch::Tensor sum = torch::zeros_like(own[i]);
        for (const auto& its : shared) sum += its[i];
        own[i].mutable_grad() = sum;
      }
      optimizers[static_cast<std::size_t>(r)].step();
    }
  }
  return nets;
}

void train(DataParallel<Mlp>& model, int steps) {
  for (int step = 0; step < steps; ++step) model.step(batch_of(static_cast<std::uint64_t>(step)), loss_of);
}

std::shared_ptr<Mlp> net_from(const ParameterSet& state, int replica) {
  auto net = make_net<Mlp>(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (const auto& item : net->named_parameters()) {
    const NamedArray* own = state.find(fmt::format("replica/{}/{}", replica, item.key()));
    const std::span<const double> values = (own != nullptr ? *own : state.at(item.key())).values<double>();
    std::ranges::copy(values, item.value().data_ptr<double>());
  }
  return net;
}

void expect_near(Mlp& found, Mlp& expected, const std::string& what) {
  const auto other = expected.named_parameters();
  for (const auto& item : found.named_parameters())
    EXPECT_TRUE(item.value().allclose(other[item.key()], 1e-9, 1e-9)) << what << ": " << item.key();
}

TEST(PrivateParameters, FollowTheRowsOfTheirReplicaAlone) {
  for (const int replicas : {1, 2, 3, 5}) {
    const auto expected = by_hand(replicas, 6);
    for (const int processes : {1, 2, 3}) {
      if (processes > replicas) continue;
      ParameterSet state;
      const auto train_one = [&](Communicator* world) {
        // Cloning draws from torch's one generator: one process at a time begins.
        DataParallel<Mlp> model(make_net<Mlp>(torch::kFloat64), torch::optim::AdamOptions(0.05),
                                {.replicas = replicas, .world = world, .is_private = is_private});
        train(model, 6);
        ParameterSet mine;
        model.save(mine);
        if (world == nullptr || world->rank() == Rank{0}) state = std::move(mine);
      };
      if (processes == 1) {
        train_one(nullptr);
      } else {
        // All see the same nets and batches, which torch's one generator would mix up between threads.
        std::vector<Batch> batches;
        for (std::uint64_t step = 0; step < 6; ++step) batches.push_back(batch_of(step));
        std::vector<std::shared_ptr<Mlp>> nets;
        for (int p = 0; p < processes; ++p) nets.push_back(make_net<Mlp>(torch::kFloat64));
        run_ranks(processes, [&](Communicator& world) {
          DataParallel<Mlp> model(nets[static_cast<std::size_t>(world.rank().value)], torch::optim::AdamOptions(0.05),
                                  {.replicas = replicas, .world = &world, .is_private = is_private});
          for (const Batch& batch : batches) model.step(batch, loss_of);
          ParameterSet mine;
          model.save(mine);
          if (world.rank() == Rank{0}) state = std::move(mine);
        });
        // What is shared is the same on all processes.
        for (const auto& net : nets) {
          const std::vector<torch::Tensor> first = parameters_of(*nets.front(), false);
          const std::vector<torch::Tensor> its = parameters_of(*net, false);
          for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(its[i]));
        }
      }
      for (int r = 0; r < replicas; ++r) {
        const std::string what = fmt::format("replica {} of {} on {}", r, replicas, processes);
        expect_near(*net_from(state, r), *expected[static_cast<std::size_t>(r)], what);
      }
    }
  }
}

TEST(PrivateParameters, AreNotForLogicalShardsOrOtherOptimizers) {
  EXPECT_EQ(testing::usage_error([] {
              DataParallel<Mlp> model(make_net<Mlp>(torch::kFloat32), torch::optim::SGDOptions(0.1),
                                      {.replicas = 2, .is_private = is_private, .logical_shards = 4});
            }),
            "logical_shards: the same bits on any number of replicas cannot be where replicas have parameters of their "
            "own");
}

TEST(PrivateParameters, ThatAreNotFiniteLeaveEverythingAsItWas) {
  auto net = make_net<Mlp>(torch::kFloat64);
  DataParallel<Mlp> model(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .is_private = is_private});
  train(model, 2);
  ParameterSet before;
  model.save(before);
  EXPECT_EQ(testing::usage_error([&] {
              model.step(batch_of(2), [](Mlp& replica, const Batch& rows) {
                return loss_of(replica, rows) + (replica.hidden->bias * std::numeric_limits<double>::infinity()).sum();
              });
            }),
            "the gradient of 'hidden.bias' is not finite (NaN or infinite); nothing was changed");
  ParameterSet after;
  model.save(after);
  EXPECT_EQ(before, after);
}

// --- replicas of several processes ---

TEST(DataParallelProcesses, TrainAsTheReplicasOfOne) {
  for (const int replicas : {2, 3, 5}) {
    std::vector<Batch> batches;
    for (std::uint64_t step = 0; step < 5; ++step) batches.push_back(batch_of(step));
    for (const DataParallelOptions& options :
         {DataParallelOptions{}, DataParallelOptions{.algorithm = Ring{}}, DataParallelOptions{.clip_norm = 0.1},
          DataParallelOptions{.accumulate = 2}}) {
      auto expected = make_net<Mlp>(torch::kFloat64);
      DataParallelOptions its = options;
      its.replicas = replicas;
      DataParallel<Mlp> whole(expected, torch::optim::SGDOptions(0.1).momentum(0.9), its);
      for (const Batch& batch : batches) whole.step(batch, loss_of);
      for (const int processes : {2, 3}) {
        if (processes > replicas) continue;
        std::vector<std::shared_ptr<Mlp>> nets;
        for (int p = 0; p < processes; ++p) nets.push_back(make_net<Mlp>(torch::kFloat64));
        run_ranks(processes, [&](Communicator& world) {
          DataParallelOptions mine = its;
          mine.world = &world;
          DataParallel<Mlp> model(nets[static_cast<std::size_t>(world.rank().value)],
                                  torch::optim::SGDOptions(0.1).momentum(0.9), mine);
          for (const Batch& batch : batches) model.step(batch, loss_of);
        });
        for (const auto& net : nets)
          expect_near(*net, *expected, fmt::format("{} replicas on {} processes", replicas, processes));
      }
    }
  }
}

// With nobody there to answer: rank 0 is through before the others begin. One of them has no rows in the last batch.
TEST(DataParallelProcesses, TakeStepsAloneWithTheSameBits) {
  constexpr int kReplicas = 3;
  std::vector<Batch> batches;
  for (std::uint64_t step = 0; step < 4; ++step) batches.push_back(batch_of(step));
  batches.push_back({batches[0].data.slice(0, 0, 2), batches[0].target.slice(0, 0, 2)});
  const auto everything = [](const std::string&) { return true; };
  const DataParallelOptions options{.replicas = kReplicas, .is_private = everything, .clip_norm = 0.1};
  const auto rule = torch::optim::AdamWOptions(0.05).weight_decay(0.1);
  DataParallel<Mlp> whole(make_net<Mlp>(torch::kFloat64), rule, options);
  for (const Batch& batch : batches) whole.step(batch, loss_of);
  for (const int processes : {2, 3}) {
    std::vector<std::shared_ptr<Mlp>> nets;
    for (int p = 0; p < processes; ++p) nets.push_back(make_net<Mlp>(torch::kFloat64));
    run_ranks(processes, [&](Communicator& world) {
      DataParallelOptions mine = options;
      mine.world = &world;
      mine.steps_alone = true;
      DataParallel<Mlp> model(nets[static_cast<std::size_t>(world.rank().value)], rule, mine);
      if (world.rank() != Rank{0}) barrier(world);
      for (const Batch& batch : batches) model.step(batch, loss_of);
      if (world.rank() == Rank{0}) barrier(world);
      model.share_buffers();
      const OwnShards own = model.own_shards();
      for (int r = 0; r < own.count; ++r) {
        const auto its = model.private_parameters(r);
        const auto expected = whole.private_parameters(own.first + r);
        for (std::size_t i = 0; i < its.size(); ++i)
          EXPECT_TRUE(its[i].second.equal(expected[i].second)) << its[i].first << " of " << own.first + r;
      }
    });
  }
}

TEST(DataParallelProcesses, TakeNoStepsAloneWithParametersThatTheyShare) {
  const auto refused = [](const DataParallelOptions& options) {
    return testing::usage_error(
        [&] { DataParallel<Mlp>(make_net<Mlp>(torch::kFloat64), torch::optim::SGDOptions(0.1), options); });
  };
  EXPECT_EQ(refused({.replicas = 2, .steps_alone = true}),
            "steps_alone: processes that say nothing to each other in a step need parameters of their own");
  const std::string refusal = refused({.replicas = 2, .is_private = is_private, .steps_alone = true});
  EXPECT_TRUE(refusal.starts_with("steps_alone: '")) << refusal;
  EXPECT_TRUE(refusal.ends_with("' is shared, and all parameters have to be private")) << refusal;
}

TEST(DataParallelProcesses, HearOfOneThatFails) {
  std::vector<std::string> heard(2);
  std::vector<std::shared_ptr<Mlp>> nets{make_net<Mlp>(torch::kFloat64), make_net<Mlp>(torch::kFloat64)};
  const Batch batch = batch_of(0);
  EXPECT_ANY_THROW(run_ranks(2, [&](Communicator& world) {
    const auto me = static_cast<std::size_t>(world.rank().value);
    DataParallel<Mlp> model(nets[me], torch::optim::SGDOptions(0.1), {.replicas = 2, .world = &world});
    try {
      model.step(batch, [&](Mlp& net, const Batch& rows) {
        if (me == 1) throw UsageError("row 7 is bad");
        return loss_of(net, rows);
      });
    } catch (const std::exception& error) {
      heard[me] = error.what();
      throw;
    }
  }));
  EXPECT_NE(heard[0].find("row 7 is bad"), std::string::npos) << heard[0];
  EXPECT_NE(heard[1].find("row 7 is bad"), std::string::npos) << heard[1];
}

TEST(DataParallelProcesses, NeedAReplicaEach) {
  std::vector<std::shared_ptr<Mlp>> nets{make_net<Mlp>(torch::kFloat64), make_net<Mlp>(torch::kFloat64)};
  run_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(testing::usage_error([&] {
                DataParallel<Mlp> model(nets[static_cast<std::size_t>(world.rank().value)],
                                        torch::optim::SGDOptions(0.1), {.replicas = 1, .world = &world});
              }),
              "replicas: expected at least one for each of 2 processes, found 1");
  });
}

}  // namespace
}  // namespace tutti::data_parallel_private_test
