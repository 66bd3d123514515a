// Rounds of DistributedModule that fail: everybody hears of it, nothing is lost, and the next round works.
#include <tutti/nn/distributed_module.hpp>

#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/run_ranks.hpp>

#include "support/distributed_net.hpp"

namespace tutti::distributed_failures_test {
namespace {

using namespace testing;  // the network
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

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

}  // namespace
}  // namespace tutti::distributed_failures_test
