// DistributedModule over ranks that are threads, against plain libtorch over the whole batch.
#include <tutti/nn/distributed_module.hpp>

#include <functional>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/synced_module.hpp>
#include <tutti/sync/gradient_sync.hpp>

#include "support/distributed_net.hpp"

namespace tutti::distributed_module_test {
namespace {

using namespace testing;  // the network
using ::testing::ElementsAre;
using namespace std::chrono_literals;

TEST(DistributedModule, EqualsTheLargeBatchWithUnevenShares) {
  const std::vector<torch::Tensor> whole = trained_whole(6, 11);
  for (int ranks : {1, 2, 3, 5}) {
    for (bool sets_to_none : {true, false}) {
      for (std::uint64_t bucket : {1u, 600u, 1u << 20}) {
        run_ranks(ranks, [&](Communicator& world) {
          // Every rank begins with other values; rank 0's count.
          Net net = make_net(1 + static_cast<std::uint64_t>(world.rank().value));
          DistributedModule model(net.ptr(), std::move(world),
                                  {.bucket_size = Bytes{bucket}, .first_bucket_size = Bytes{bucket}});
          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
          for (int step = 0; step < 6; ++step) {
            const Batch mine = rows_of(make_batch(11, static_cast<std::uint64_t>(step)), model.rank(), model.size());
            net->zero_grad(sets_to_none);
            model.backward(loss_of(*net, mine), static_cast<double>(row_count(mine)));
            optimizer.step();
          }
          expect_near(values_of(*net), whole, 1e-9, fmt::format("{} ranks, bucket {}", ranks, bucket));
        });
      }
    }
  }
}

TEST(DistributedModule, ABareBackwardIsSynchronisedToo) {
  const std::vector<torch::Tensor> whole = trained_whole(4, 12);
  run_ranks(3, [&](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      net->zero_grad(true);
      loss_of(*net, rows_of(make_batch(12, static_cast<std::uint64_t>(step)), model.rank(), model.size())).backward();
      optimizer.step();
    }
    expect_near(values_of(*net), whole, 1e-9, "bare");
  });
}

TEST(DistributedModule, ABatchThatAllHaveIsDealtOut) {
  const std::vector<torch::Tensor> whole = trained_whole(4, 7);
  for (int ranks : {1, 2, 5, 8}) {
    run_ranks(ranks, [&](Communicator& world) {
      Net net = make_net();
      DistributedModule model(net.ptr(), std::move(world));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 4; ++step) {
        net->zero_grad(true);
        const Batch batch = make_batch(7, static_cast<std::uint64_t>(step));
        const double loss = model.backward(batch, [&](const Batch& rows) { return loss_of(*net, rows); });
        EXPECT_NEAR(loss, loss_of(*net, batch).item<double>(), 1e-9);
        model.step(optimizer);
      }
      expect_near(values_of(*net), whole, 1e-9, fmt::format("{} ranks", ranks));
    });
  }
}

TEST(DistributedModule, GivesTheSameBitsForLogicalShardsOnAnyNumberOfRanksAndReplicas) {
  for (int shards : {8, 6}) {
    std::vector<torch::Tensor> expected;
    std::vector<double> losses;
    const auto options = torch::optim::AdamOptions(1e-2);
    for (int replicas : {1, 4}) {
      Net net = make_net(1, 0.3);
      net->uses_norm = true;
      DataParallel<NetImpl> parallel(
          [&] {
            Net replica = make_net(1, 0.3);
            replica->uses_norm = true;
            return replica.ptr();
          },
          options, {.replicas = replicas, .logical_shards = shards, .seed = 5});
      std::vector<double> its;
      for (int step = 0; step < 4; ++step) {
        its.push_back(parallel.step(make_batch(30, static_cast<std::uint64_t>(step)),
                                    [](NetImpl& replica, Batch& rows) { return loss_of(replica, rows); }));
      }
      if (expected.empty()) {
        expected = values_of(*parallel.module());
        losses = its;
      }
      expect_same(values_of(*parallel.module()), expected, fmt::format("{} replicas", replicas));
      EXPECT_EQ(its, losses);
    }
    for (int ranks : {1, 2, 3, 4, 6}) {
      run_ranks(ranks, [&](Communicator& world) {
        Net net = make_net(1, 0.3);
        net->uses_norm = true;
        DistributedModule model(net.ptr(), std::move(world), {.logical_shards = shards, .seed = 5});
        torch::optim::Adam optimizer(net->parameters(), options);
        std::vector<double> its;
        for (int step = 0; step < 4; ++step) {
          its.push_back(model.backward(make_batch(30, static_cast<std::uint64_t>(step)),
                                       [&](const Batch& rows) { return loss_of(*net, rows); }));
          model.step(optimizer);
        }
        expect_same(values_of(*net), expected, fmt::format("{} shards, {} ranks", shards, ranks));
        EXPECT_EQ(its, losses) << ranks;
      });
    }
  }
}

TEST(DistributedModule, TheFirstBucketIsOnItsWayBeforeTheLastGradientIsReady) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<BucketEvent::Kind> events;
    const auto note = [&](const BucketEvent& event) {
      const std::lock_guard lock(mutex);
      events.push_back(event.kind);
      changed.notify_all();
    };
    DistributedModule model(net.ptr(), std::move(world),
                            {.bucket_size = Bytes{1}, .first_bucket_size = Bytes{1}, .on_event = note});
    const Batch batch = make_batch(4, 1);
    torch::Tensor hidden = net->first(std::get<0>(batch));
    // Backward does not come to the first layer before the second layer's exchange has begun.
    hidden.register_hook([&](const torch::Tensor&) {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, 30s, [&] {
        return std::ranges::find(events, BucketEvent::Kind::bucket_started) != events.end();
      })) << "no bucket was started while backward went on";
    });
    model.backward(torch::nn::functional::cross_entropy(net->second(torch::relu(hidden)), std::get<1>(batch)));
    const auto started = std::ranges::find(events, BucketEvent::Kind::bucket_started);
    const auto last_ready =
        std::ranges::find(events.rbegin(), events.rend(), BucketEvent::Kind::gradient_ready).base() - 1;
    EXPECT_LT(started, last_ready);
  });
}

TEST(DistributedModule, UnusedParametersAreNamedAndLeftAlone) {
  run_ranks(3, [](Communicator& world) {
    const Rank rank = world.rank();
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    for (int round = 0; round < 3; ++round) {
      net->zero_grad(true);
      const Batch batch = make_batch(4, 1);
      // Rank 1 alone uses the second layer's weight; nobody uses batch norm's.
      torch::Tensor loss = net->first(std::get<0>(batch)).square().mean();
      if (rank == Rank{1}) loss = loss + net->second->weight.square().sum();
      model.backward(loss);
      EXPECT_THAT(model.report().unused, ElementsAre("norm.weight", "norm.bias", "second.bias"));
      EXPECT_FALSE(net->norm->weight.grad().defined());
      EXPECT_LE((net->second->weight.grad() - 2 * net->second->weight / 3).abs().max().item<double>(), 1e-12);
    }
  });
}

TEST(DistributedModule, NoSyncAddsUpUntilTheStepThatSynchronises) {
  const std::vector<torch::Tensor> whole = trained_whole(3, 12);
  run_ranks(2, [&](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(true);
      const Batch mine = rows_of(make_batch(12, static_cast<std::uint64_t>(step)), model.rank(), 2);
      const Batch one = slice_rows(mine, {.first = 0, .stride = 1, .count = 4});
      const Batch other = slice_rows(mine, {.first = 4, .stride = 1, .count = 2});
      {
        const auto guard = model.no_sync();
        model.backward(loss_of(*net, one), 4);
      }
      model.backward(loss_of(*net, other), 2);
      optimizer.step();
    }
    expect_near(values_of(*net), whole, 1e-9, "no_sync");
  });
}

TEST(DistributedModule, RanksWithFewerBatchesJoinUntilTheLastIsDone) {
  run_ranks(3, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Net alone = make_net();
    torch::optim::SGD reference(alone->parameters(), 0.1);
    const int batches = 1 + 2 * model.rank().value;
    for (int step = 0; step < 5; ++step) {
      // What those train on who still have batches, together.
      reference.zero_grad();
      for (int rank = 0; rank < 3; ++rank) {
        if (step >= 1 + 2 * rank) continue;
        const int left = (step < 1 ? 1 : 0) + (step < 3 ? 1 : 0) + 1;
        (loss_of(*alone, make_batch(5, static_cast<std::uint64_t>(10 * step + rank))) / left).backward();
      }
      reference.step();
      if (step >= batches) continue;
      net->zero_grad(true);
      model.backward(loss_of(*net, make_batch(5, static_cast<std::uint64_t>(10 * step + model.rank().value))));
      optimizer.step();
    }
    model.join();
    expect_near(values_of(*net), values_of(*alone), 1e-9, to_string(model.rank()));
  });
}

TEST(DistributedModule, HooksAndCompressionsAreCarriedOut) {
  for (const Compression& compression : compressions()) {
    run_ranks(2, [&](Communicator& world) {
      Net net = make_net();
      DistributedModule model(net.ptr(), std::move(world), {.compression = compression});
      torch::optim::SGD optimizer(net->parameters(), 0.2);
      const Batch mine = rows_of(make_batch(12, 3), model.rank(), 2);
      double first = 0;
      for (int step = 0; step < 60; ++step) {
        net->zero_grad(true);
        model.backward(loss_of(*net, mine));
        optimizer.step();
        if (step == 0) first = model.report().loss;
      }
      EXPECT_LT(model.report().loss, 0.7 * first) << to_string(compression);
      const bool is_plain = std::holds_alternative<NoCompression>(compression);
      EXPECT_EQ(model.compression_tally().saved() > 0, !is_plain) << model.compression_tally().line();
    });
  }
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    int calls = 0;
    DistributedModule model(net.ptr(), std::move(world),
                            {.bucket_size = Bytes{1},
                             .first_bucket_size = Bytes{1},
                             .hook = [&](Communicator& its_world, GradientBuffers& bucket) {
                               ++calls;
                               all_reduce(its_world, bucket.all(), {.op = ReduceOp::mean});
                             }});
    model.backward(loss_of(*net, make_batch(4, 1)));
    EXPECT_EQ(calls, 6);
    Net alone = make_net();
    loss_of(*alone, make_batch(4, 1)).backward();
    EXPECT_LE((net->first->weight.grad() - alone->first->weight.grad()).abs().max().item<double>(), 1e-12);
  });
}

TEST(DistributedModule, BuffersFollowTheFirstOrAreAveraged) {
  for (Buffers mode : {Buffers::follow_first, Buffers::averaged}) {
    run_ranks(3, [&](Communicator& world) {
      Net net = make_net();
      net->uses_norm = true;
      DistributedModule model(net.ptr(), std::move(world), {.buffers = mode});
      torch::Tensor expected = torch::zeros({16}, torch::kFloat64);
      for (int rank = 0; rank < (mode == Buffers::averaged ? 3 : 1); ++rank) {
        Net alone = make_net();
        alone->uses_norm = true;
        alone->forward(std::get<0>(make_batch(6, static_cast<std::uint64_t>(rank))));
        expected += alone->norm->running_mean / (mode == Buffers::averaged ? 3 : 1);
      }
      model.backward(loss_of(*net, make_batch(6, static_cast<std::uint64_t>(model.rank().value))));
      EXPECT_LE((net->norm->running_mean - expected).abs().max().item<double>(), 1e-12);
    });
  }
}

TEST(DistributedModule, BuffersOfEachRankAreKeptApartWhereAllHaveTheBatch) {
  const auto make = [] {
    Net net = make_net();
    net->uses_norm = true;
    return net.ptr();
  };
  const auto options = torch::optim::SGDOptions(0.1);
  DataParallel<NetImpl> parallel(make, options, {.replicas = 3, .buffers = Buffers::per_shard});
  for (std::uint64_t step = 0; step < 3; ++step) {
    parallel.step(make_batch(12, step), [](NetImpl& replica, Batch& rows) { return loss_of(replica, rows); });
  }
  run_ranks(3, [&](Communicator& world) {
    const auto net = make();
    DistributedModule model(net, std::move(world), {.buffers = Buffers::per_shard});
    torch::optim::SGD optimizer(net->parameters(), options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      model.backward(make_batch(12, step), [&](const Batch& rows) { return loss_of(*net, rows); });
      model.step(optimizer);
    }
    expect_near(values_of(*net), values_of(*parallel.module()), 1e-9, "per_shard");
    // Where the caller makes the forward pass, they cannot be put in place before it.
    EXPECT_THROW(model.backward(loss_of(*net, make_batch(4, 1))), UsageError);
    EXPECT_THROW(loss_of(*net, make_batch(4, 1)).backward(), UsageError);
  });
}

TEST(DistributedModule, GoesOnWithThoseLeft) {
  run_ranks(3, [](Communicator& world) {
    const Rank rank = world.rank();
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    model.backward(loss_of(*net, make_batch(4, 1)));
    if (rank == Rank{1}) return;
    std::vector<Rank> lost;
    try {
      model.backward(loss_of(*net, make_batch(4, 1)));
      ADD_FAILURE() << "nobody was missed";
    } catch (const PeerError& error) {
      lost = error.ranks();
    }
    EXPECT_EQ(lost, std::vector{Rank{1}});
    model.rebuild(std::vector{Rank{0}, Rank{2}});
    EXPECT_EQ(model.size(), 2);
    model.backward(loss_of(*net, make_batch(4, 1)));
    EXPECT_EQ(model.report().weight, 2);
  });
}

TEST(DistributedModule, TorchsOwnZeroGradWorks) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model.backward(loss_of(*net, make_batch(4, 1)));
      optimizer.step();
    }
    Net other = make_net();
    LocalGradientSync alone;
    SyncedModule other_model(other.ptr(), alone);
    torch::optim::SGD other_optimizer(other->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      other_optimizer.zero_grad();
      other_model.backward(loss_of(*other, make_batch(4, 1)));
      other_optimizer.step();
    }
    expect_near(values_of(*net), values_of(*other), 1e-12, "beside SyncedModule");
  });
}

// --- what rounds must not lose ---

TEST(DistributedModule, NoSyncKeepsGradientsThatTheLastPassDoesNotHave) {
  // Rows of two passes; the second one uses only the last layer, or counts for nothing.
  for (const bool last_counts : {true, false}) {
    run_ranks(2, [&](Communicator& world) {
      Net net = make_net();
      DistributedModule model(net.ptr(), std::move(world));
      const auto seed = static_cast<std::uint64_t>(model.rank().value);
      {
        const auto unsynced = model.no_sync();
        model.backward(loss_of(*net, make_batch(4, seed)), 4);
      }
      const torch::Tensor features = torch::ones({2, 16}, torch::kFloat64);
      model.backward(net->second(features).pow(2).mean(), last_counts ? 2 : 0);

      Net whole = make_net();
      double weight = 0;
      torch::Tensor sum = torch::zeros({}, torch::kFloat64);
      for (const std::uint64_t rank : {0, 1}) {
        sum = sum + 4 * loss_of(*whole, make_batch(4, rank));
        if (last_counts) sum = sum + 2 * whole->second(features).pow(2).mean();
        weight += last_counts ? 6 : 4;
      }
      (sum / weight).backward();
      EXPECT_NEAR(model.report().loss, (sum / weight).item<double>(), 1e-12);
      EXPECT_LE((net->first->weight.grad() - whole->first->weight.grad()).abs().max().item<double>(), 1e-12);
      EXPECT_LE((net->second->weight.grad() - whole->second->weight.grad()).abs().max().item<double>(), 1e-12);
    });
  }
}

TEST(DistributedModule, WhatIsLeftOfNoSyncComesWithTheJoin) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    if (model.rank() == Rank{0}) {
      {
        const auto unsynced = model.no_sync();
        model.backward(loss_of(*net, make_batch(4, 0)), 4);
      }
      model.join();
      return;
    }
    model.backward(loss_of(*net, make_batch(2, 1)), 2);
    Net whole = make_net();
    ((4 * loss_of(*whole, make_batch(4, 0)) + 2 * loss_of(*whole, make_batch(2, 1))) / 6).backward();
    EXPECT_LE((net->first->weight.grad() - whole->first->weight.grad()).abs().max().item<double>(), 1e-12);
    model.join();
  });
}

TEST(DistributedModule, AnOptimizersStateIsSharedWhereTrainingGoesOnAfterJoining) {
  std::mutex mutex;
  std::vector<std::vector<torch::Tensor>> values(3);
  run_ranks(3, [&](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    const auto me = static_cast<std::size_t>(model.rank().value);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (std::size_t step = 0; step <= 2 * me; ++step) {
        net->zero_grad(true);
        model.backward(loss_of(*net, make_batch(4, step)));
        model.step(optimizer);
        // A schedule that those with fewer batches are behind in.
        auto& options = static_cast<torch::optim::AdamOptions&>(optimizer.param_groups().front().options());
        options.lr(options.lr() * 0.7);
      }
      model.join(&optimizer);
    }
    // One more that all take.
    net->zero_grad(true);
    model.backward(loss_of(*net, make_batch(4, 7)));
    model.step(optimizer);
    const std::lock_guard lock(mutex);
    values[me] = values_of(*net);
  });
  expect_same(values[1], values[0], "rank 1");
  expect_same(values[2], values[0], "rank 2");
}

TEST(DistributedModule, ARankJoinsWhileTheOthersComputeLogicalShards) {
  run_ranks(3, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world), {.logical_shards = 4});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < (model.rank() == Rank{1} ? 1 : 3); ++step) {
      closure_loss(model, *net, make_batch(8, static_cast<std::uint64_t>(step)), [] {});
      model.step(optimizer);
    }
    model.join(&optimizer);
    for (const torch::Tensor& parameter : net->parameters()) {
      torch::Tensor all = parameter.detach().clone();
      all_reduce(model.world(), Array(all.data_ptr(), static_cast<std::size_t>(all.numel()), DataType::float64),
                 {.op = ReduceOp::max});
      EXPECT_TRUE(torch::equal(all, parameter));
    }
  });
}

TEST(DistributedModule, ClipsTheNormOfTheWholeGradientAsDataParallelDoes) {
  const Batch batch = make_batch(16, 5);
  for (const double clip : {0.05, 100.0}) {
    Net replicated = make_net();
    DataParallel parallel(replicated, torch::optim::SGDOptions(0.1),
                          {.replicas = 2, .logical_shards = 4, .clip_norm = clip});
    parallel.step(batch, [](NetImpl& net, const Batch& rows) { return loss_of(net, rows); });
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](Communicator& world) {
        Net net = make_net();
        DistributedModule model(net.ptr(), std::move(world), {.logical_shards = 4, .clip_norm = clip});
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        closure_loss(model, *net, batch, [] {});
        model.step(optimizer);
        EXPECT_EQ(model.report().gradient_norm, parallel.report().gradient_norm);
        expect_same(values_of(*net), values_of(*replicated), fmt::format("{} ranks, clip {}", ranks, clip));
      });
    }
  }
}

TEST(DistributedModule, AutocastAndSyncedBatchNormEqualTheLargeBatch) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    net->uses_norm = true;
    Net whole = make_net();
    whole->uses_norm = true;
    const Batch batch = make_batch(10, 4);
    const torch::Tensor loss = loss_of(*whole, batch);
    loss.backward();
    DistributedModule model(net.ptr(), std::move(world), {.sync_batch_norm = true});
    EXPECT_NEAR(closure_loss(model, *net, batch, [] {}), loss.item<double>(), 1e-12);
    EXPECT_LE((net->first->weight.grad() - whole->first->weight.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_LE((net->norm->running_var - whole->norm->running_var).abs().max().item<double>(), 1e-12);
  });
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    net->to(torch::kFloat32);
    DistributedModule model(net.ptr(), std::move(world), {.autocast = true});
    const Batch batch{std::get<0>(make_batch(10, 4)).to(torch::kFloat32), std::get<1>(make_batch(10, 4))};
    c10::ScalarType seen = torch::kFloat32;
    model.backward(batch, [&](const Batch& rows) {
      const torch::Tensor hidden = net->first(std::get<0>(rows));
      seen = hidden.scalar_type();
      return torch::nn::functional::cross_entropy(net->second(torch::relu(hidden)).to(torch::kFloat32),
                                                  std::get<1>(rows));
    });
    EXPECT_EQ(seen, torch::kBFloat16);
    EXPECT_EQ(net->first->weight.grad().scalar_type(), torch::kFloat32);
  });
}

}  // namespace
}  // namespace tutti::distributed_module_test
