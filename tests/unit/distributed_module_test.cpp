// DistributedModule over ranks that are threads, against plain libtorch over the whole batch.
#include <tutti/nn/distributed_module.hpp>

#include <functional>
#include <limits>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/synced_module.hpp>
#include <tutti/sync/collective_gradient_sync.hpp>
#include <tutti/sync/threaded_gradient_sync.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

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

Net make_net(std::uint64_t seed = 1, double dropout = 0) {
  static std::mutex mutex;  // libtorch's generator is everybody's
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  Net net(16, dropout);
  net->to(torch::kFloat64);
  return net;
}

Batch make_batch(std::int64_t rows, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return {torch::randn({rows, 6}, generator, torch::kFloat64), torch::randint(0, 3, {rows}, generator, torch::kInt64)};
}

torch::Tensor loss_of(NetImpl& net, const Batch& rows) {
  return torch::nn::functional::cross_entropy(net.forward(std::get<0>(rows)), std::get<1>(rows));
}

Batch rows_of(const Batch& batch, Rank rank, int ranks) {
  const std::int64_t rows = row_count(batch);
  return slice_rows(batch, Rows::of_shard(rows, ranks, rank.value));
}

std::vector<torch::Tensor> values_of(torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& one : module.parameters()) values.push_back(one.detach().clone());
  for (const torch::Tensor& one : module.buffers()) values.push_back(one.detach().clone());
  return values;
}

void expect_near(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, double most,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), most) << what << ", tensor " << i;
}

void expect_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ", tensor " << i;
}

// Parameters after some steps of SGD with momentum over the whole batch.
std::vector<torch::Tensor> trained_whole(int steps, std::int64_t rows) {
  Net net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(*net, make_batch(rows, static_cast<std::uint64_t>(step))).backward();
    optimizer.step();
  }
  return values_of(*net);
}

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

TEST(DistributedModule, ModulesThatDifferAreRefusedOnAllRanks) {
  run_ranks(3, [](Communicator& world) {
    const Net net(world.rank() == Rank{2} ? 8 : 16);
    try {
      DistributedModule model(net.ptr(), std::move(world));
      FAIL() << "was taken";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.kind(), FailureKind::disagreement);
      EXPECT_THAT(error.what(), HasSubstr("'first.weight' is Float [16, 6] on rank 0 and Float [8, 6] on rank 2"));
    }
  });
}

TEST(DistributedModule, AnErrorInOneRanksBackwardIsToldToAllAndTheNextRoundWorks) {
  run_ranks(3, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world), {.bucket_size = Bytes{1}, .first_bucket_size = Bytes{1}});
    for (int round = 0; round < 3; ++round) {
      net->zero_grad(true);
      torch::Tensor hidden = net->first(std::get<0>(make_batch(4, 1)));
      if (model.rank() == Rank{1})
        hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("out of luck"); });
      try {
        model.backward(net->second(hidden).square().mean());
        ADD_FAILURE() << "nothing was said";
      } catch (const PeerError& error) {
        EXPECT_NE(model.rank(), Rank{1});
        EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        EXPECT_TRUE(error.communicator_usable());
      } catch (const std::exception& error) {
        EXPECT_EQ(model.rank(), Rank{1});
        EXPECT_THAT(error.what(), HasSubstr("out of luck"));
      }
      model.backward(loss_of(*net, make_batch(4, 2)));
    }
  });
}

TEST(DistributedModule, AGradientThatIsNoNumberIsRefusedOnAllRanksByName) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    Batch batch = make_batch(4, 1);
    if (model.rank() == Rank{1}) std::get<0>(batch)[2][3] = NAN;
    try {
      model.backward(loss_of(*net, batch));
      ADD_FAILURE() << "was taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the gradient of '"));
      EXPECT_THAT(error.what(), HasSubstr("is not finite"));
    }
    EXPECT_FALSE(net->first->weight.grad().defined());
    model.backward(loss_of(*net, make_batch(4, 1)));
    EXPECT_TRUE(net->first->weight.grad().defined());
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

// --- rounds that fail ---

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

double closure_loss(DistributedModule& model, NetImpl& net, const Batch& batch, const std::function<void()>& before) {
  return model.backward(batch, [&](const Batch& rows) {
    before();
    return loss_of(net, rows);
  });
}

// In every way that a batch can be computed, one rank's closure throws: all hear who, buffers and compressors are as
// before, and the next round works.
TEST(DistributedModule, AClosureThatThrowsOnOneRankIsHeardOfInEveryWayToCompute) {
  const std::vector<DistributedOptions> ways{{},
                                             {.logical_shards = 3},
                                             {.logical_shards = 8},
                                             {.sync_batch_norm = true},
                                             {.logical_shards = 3, .sync_batch_norm = true},
                                             {.compression = TopK{0.1}},
                                             {.buffers = Buffers::averaged},
                                             {.buffers = Buffers::per_shard}};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    for (const int thrower : {0, 2}) {
      SCOPED_TRACE(fmt::format("way {}, rank {} throws", way, thrower));
      run_ranks(3, [&](Communicator& world) {
        Net net = make_net();
        net->uses_norm = true;
        DistributedModule model(net.ptr(), std::move(world), ways[way]);
        const Batch batch = make_batch(24, 3);
        closure_loss(model, *net, batch, [] {});
        const std::vector<torch::Tensor> before = values_of(*net);
        const bool is_thrower = model.rank() == Rank{thrower};
        const std::string thrown = thrown_by([&] {
          closure_loss(model, *net, batch, [&] {
            if (is_thrower) throw std::runtime_error("boom");
          });
        });
        EXPECT_THAT(thrown, is_thrower ? HasSubstr("boom") : HasSubstr("PeerError")) << to_string(model.rank());
        if (!is_thrower) {
          EXPECT_THAT(thrown, HasSubstr(fmt::format("the backward pass failed on rank {};", thrower)));
        }
        expect_same(values_of(*net), before, "after the failed round");
        closure_loss(model, *net, batch, [] {});
        EXPECT_TRUE(torch::isfinite(net->first->weight.grad()).all().item<bool>());
      });
    }
  }
}

TEST(DistributedModule, ARefusedGradientLeavesBuffersAndRemainsAsTheyWere) {
  for (const Buffers mode : {Buffers::follow_first, Buffers::averaged}) {
    for (const Compression& compression : {Compression(NoCompression{}), Compression(TopK{0.2})}) {
      run_ranks(2, [&](Communicator& world) {
        Net net = make_net();
        net->uses_norm = true;
        DistributedModule model(net.ptr(), std::move(world), {.compression = compression, .buffers = mode});
        const Batch good = make_batch(6, static_cast<std::uint64_t>(model.rank().value));
        model.backward(loss_of(*net, good));
        const std::vector<torch::Tensor> before = values_of(*net);
        const CompressionTally tally = model.compression_tally();
        Batch bad = make_batch(6, 9);
        if (model.rank() == Rank{0}) std::get<0>(bad)[2][1] = std::numeric_limits<double>::quiet_NaN();
        net->zero_grad(true);
        EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, bad)); }), HasSubstr("is not finite"));
        expect_same(values_of(*net), before, "after the refused gradient");
        EXPECT_EQ(model.compression_tally().gradients, tally.gradients);
        model.backward(loss_of(*net, good));
        EXPECT_TRUE(torch::isfinite(net->norm->running_mean).all().item<bool>());
      });
    }
  }
}

TEST(DistributedModule, ALossThatCannotBeIsToldToTheOthers) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    const bool is_wrong = model.rank() == Rank{1};
    const torch::Tensor loss = loss_of(*net, make_batch(4, 1));
    EXPECT_THAT(thrown_by([&] { model.backward(is_wrong ? loss.detach() : loss); }),
                is_wrong ? HasSubstr("does not depend on any parameter") : HasSubstr("failed on rank 1"));
    const double weight = is_wrong ? std::numeric_limits<double>::quiet_NaN() : 1;
    EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, make_batch(4, 1)), weight); }),
                is_wrong ? HasSubstr("expected a weight") : HasSubstr("failed on rank 1"));
    model.backward(loss_of(*net, make_batch(4, 1)));
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST(DistributedModule, ABareBackwardThatThrowsIsHeardOfWithTheNextRound) {
  for (const bool sets_to_none : {true, false})
    run_ranks(2, [&](Communicator& world) {
      Net net = make_net();
      DistributedModule model(net.ptr(), std::move(world));
      model.backward(loss_of(*net, make_batch(4, 1)));
      net->zero_grad(sets_to_none);
      // After the last layer's gradient is there.
      const bool throws = model.rank() == Rank{1};
      torch::Tensor input = std::get<0>(make_batch(4, 1)).requires_grad_();
      torch::Tensor hidden = torch::relu(net->first(input));
      if (throws) hidden.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("boom"); });
      const torch::Tensor loss = net->second(hidden).sum();
      EXPECT_THAT(thrown_by([&] {
                    loss.backward();
                    if (throws) ADD_FAILURE() << "nothing was thrown";
                  }),
                  throws ? HasSubstr("boom") : HasSubstr("failed on rank 1"));
      net->zero_grad(sets_to_none);
      Net alone = make_net();
      loss_of(*alone, make_batch(4, 2)).backward();
      loss_of(*net, make_batch(4, 2)).backward();
      EXPECT_LE((net->first->weight.grad() - alone->first->weight.grad()).abs().max().item<double>(), 1e-12);
      EXPECT_LE((net->second->weight.grad() - alone->second->weight.grad()).abs().max().item<double>(), 1e-12);
    });
}

TEST(DistributedModule, AHookThatThrowsBreaksTheWorldForAllAtOnce) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    const bool throws = world.rank() == Rank{1};
    int calls = 0;
    DistributedModule model(net.ptr(), std::move(world),
                            {.bucket_size = Bytes{1},
                             .first_bucket_size = Bytes{1},
                             .hook = [&](Communicator& its_world, GradientBuffers& bucket) {
                               if (++calls == 3 && throws) throw std::runtime_error("boom");
                               all_reduce(its_world, bucket.all(), {.op = ReduceOp::mean});
                             }});
    EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, make_batch(4, 1))); }),
                throws ? HasSubstr("boom") : HasSubstr("PeerError"));
    EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, make_batch(4, 1))); }), HasSubstr("PeerError"));
    net->zero_grad(true);
    model.rebuild(std::vector{Rank{0}, Rank{1}});
    model.backward(loss_of(*net, make_batch(4, 1)));
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST(DistributedModule, ABatchThatCannotBeIsToldToTheOthers) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    const bool is_wrong = model.rank() == Rank{1};
    Batch batch = make_batch(4, 1);
    if (is_wrong) std::get<1>(batch) = std::get<1>(batch).slice(0, 1);
    EXPECT_THAT(thrown_by([&] { closure_loss(model, *net, batch, [] {}); }),
                is_wrong ? HasSubstr("different numbers of rows") : HasSubstr("failed on rank 1"));
    closure_loss(model, *net, make_batch(4, 1), [] {});
  });
}

TEST(DistributedModule, ASparseGradientIsToldToTheOthersWheneverItIsFound) {
  struct WordsImpl : torch::nn::Cloneable<WordsImpl> {
    void reset() override {
      words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
      last = register_module("last", torch::nn::Linear(2, 1));
    }
    torch::nn::Embedding words{nullptr};
    torch::nn::Linear last{nullptr};
  };
  run_ranks(2, [](Communicator& world) {
    const auto net = std::make_shared<WordsImpl>();
    net->reset();
    DistributedModule model(net, std::move(world));
    const bool is_wrong = model.rank() == Rank{1};
    if (is_wrong) {
      const auto unsynced = model.no_sync();
      model.backward(net->last(net->words(torch::tensor({1, 2}))).sum());
    }
    EXPECT_THAT(thrown_by([&] {
                  model.backward(net->last(torch::ones({1, 2})).sum());
                }),
                is_wrong ? HasSubstr("is sparse") : HasSubstr("failed on rank 1"));
    net->zero_grad(true);
    model.backward(net->last(torch::ones({1, 2})).sum());
    EXPECT_THAT(model.report().unused, ElementsAre("words.weight"));
  });
}

TEST(DistributedModule, AJoinDuringABatchNormOverAllRanksEndsItAtOnce) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    net->uses_norm = true;
    DistributedModule model(net.ptr(), std::move(world), {.sync_batch_norm = true});
    closure_loss(model, *net, make_batch(4, 1), [] {});
    const std::string thrown = thrown_by(
        [&] { model.rank() == Rank{0} ? model.join() : void(closure_loss(model, *net, make_batch(4, 1), [] {})); });
    EXPECT_THAT(thrown, HasSubstr("no more batches"));
    model.join();
    closure_loss(model, *net, make_batch(4, 1), [] {});
    EXPECT_TRUE(net->first->weight.grad().defined());
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

TEST(DistributedModule, ABatchOfOtherLengthOnOneRankIsRefused) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    const std::int64_t rows = model.rank() == Rank{0} ? 16 : 36;
    EXPECT_THAT(thrown_by([&] { closure_loss(model, *net, make_batch(rows, 1), [] {}); }),
                HasSubstr("has 36 rows on rank 1, and 16 on others"));
    closure_loss(model, *net, make_batch(4, 1), [] {});
  });
}

TEST(DistributedModule, AModuleThatWasChangedSinceIsRefused) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    net->to(torch::kFloat32);
    const Batch batch{torch::ones({2, 6}), torch::zeros({2}, torch::kInt64)};
    EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, batch)); }),
                HasSubstr("'first.weight' has changed its type since training began"));
  });
}

TEST(DistributedModule, ACommunicatorThatWasMovedAwaySaysSo) {
  run_ranks(1, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    EXPECT_THAT(thrown_by([&] { world.rank(); }), HasSubstr("was moved away"));  // NOLINT(bugprone-use-after-move)
  });
}

TEST(DistributedModule, ARankThatLeavesWithoutJoiningIsNamedWithWhatToDo) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    model.backward(loss_of(*net, make_batch(4, 1)));
    if (model.rank() == Rank{0}) return;
    EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, make_batch(4, 1))); }),
                ::testing::AllOf(HasSubstr("rank 0 has left"), HasSubstr("calls join")));
  });
}

TEST(DistributedModule, OptionsThatDifferAreRefusedOnAllRanks) {
  run_ranks(2, [](Communicator& world) {
    Net net = make_net();
    DistributedOptions options;
    options.refuse_nan = world.rank() == Rank{0};
    EXPECT_THAT(thrown_by([&] { DistributedModule(net.ptr(), std::move(world), options); }),
                HasSubstr("the option 'refuse_nan' is true on rank 0 and false on rank 1"));
  });
}

TEST(DistributedModule, WhatNeedsTheClosureIsRefusedWithoutIt) {
  for (const auto& [options, name] : {std::pair(DistributedOptions{.sync_batch_norm = true}, "sync_batch_norm"),
                                      std::pair(DistributedOptions{.autocast = true}, "autocast"),
                                      std::pair(DistributedOptions{.buffers = Buffers::per_shard}, "buffers")}) {
    run_ranks(2, [&, its = options, its_name = name](Communicator& world) {
      Net net = make_net();
      DistributedModule model(net.ptr(), std::move(world), its);
      EXPECT_THAT(thrown_by([&] { model.backward(loss_of(*net, make_batch(4, 1))); }), HasSubstr(its_name));
    });
  }
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

TEST(DistributedModule, AStateThatIsNotItsParametersIsRefusedBeforeAnythingIsWritten) {
  run_ranks(1, [](Communicator& world) {
    Net net = make_net();
    DistributedModule model(net.ptr(), std::move(world));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model.backward(loss_of(*net, make_batch(4, 1)));
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(torch::zeros({2}, torch::kFloat64));
    optimizer.state()[c10::guts::to_string(net->second->bias.unsafeGetTensorImpl())] = std::move(state);
    const std::vector<torch::Tensor> before = values_of(*net);
    EXPECT_THAT(thrown_by([&] { model.step(optimizer); }),
                HasSubstr("the optimizer's state is not that of its parameter"));
    expect_same(values_of(*net), before, "after the refused step");

    torch::nn::Linear half(2, 2);
    half->to(torch::kBFloat16);
    half->weight.mutable_grad() = torch::ones_like(half->weight);
    torch::optim::SGD other(half->parameters(), 0.1);
    EXPECT_THAT(thrown_by([&] { model.step(other); }), HasSubstr("BFloat16"));
  });
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
}  // namespace tutti
