// A data-parallel step beside the same step over the whole batch, by hand.
#include <tutti/nn/data_parallel.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/sync/data_parallel_trainer.hpp>

#include "support/large_batch.hpp"
#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_parallel_test {
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
namespace F = torch::nn::functional;

// --- equal to the large batch ---

TEST(DataParallel, EqualsTheLargeBatchForEveryOptimizerAndNumberOfReplicas) {
  for (const testing::OptimizerCase& one : testing::optimizer_cases()) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      SCOPED_TRACE(one.name + ", replicas " + std::to_string(replicas));
      auto net = testing::make_net<Mlp>(torch::kFloat64);
      auto expected = testing::copy_of(net);
      DataParallel parallel(net, *one.options, {.replicas = replicas});
      const auto optimizer = make_optimizer(*expected, *one.options);
      std::uint64_t seed = 0;
      for (std::int64_t rows : {7, 10, 3, 1, 2, 12}) {
        const Batch batch = testing::draw_batch(rows, ++seed);
        EXPECT_NEAR(parallel.step(batch, mse), large_step(*expected, *optimizer, batch, mse), 1e-12);
        EXPECT_EQ(parallel.report().weight, static_cast<double>(rows));
        EXPECT_TRUE(parallel.report().updated);
        testing::expect_close(*net, *expected, 1e-9);
      }
    }
  }
}

TEST(DataParallel, SumsAndUpdatesInOnePassWhereNothingIsLookedAt) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  auto expected = testing::copy_of(net);
  const torch::optim::AdamOptions options(0.01);
  DataParallel parallel(net, options, {.replicas = 3, .refuse_nan = false});
  EXPECT_EQ(parallel.describe(),
            "3 replicas, threads of one process; each thread sums its slice of all gradients and updates it in the "
            "same pass");
  const auto optimizer = make_optimizer(*expected, options);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Batch batch = testing::draw_batch(8, step);
    parallel.step(batch, mse);
    large_step(*expected, *optimizer, batch, mse);
    testing::expect_close(*net, *expected, 1e-9);
  }
}

// Parameters of several pieces, which the threads share out.
TEST(DataParallel, EqualsTheLargeBatchForLargeParameters) {
  torch::nn::Sequential net(torch::nn::Linear(100, 200), torch::nn::ReLU(), torch::nn::Linear(200, 150));
  net->to(torch::kFloat64);
  auto expected = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  const torch::optim::AdamOptions options(0.01);
  DataParallel parallel(net, options, {.replicas = 3, .clip_norm = 0.01});
  const auto optimizer = make_optimizer(*expected, options);
  const auto loss = [](torch::nn::SequentialImpl& its, const Batch& rows) {
    return torch::mse_loss(its.forward(rows.data), rows.target);
  };
  for (int step = 0; step < 3; ++step) {
    const Batch batch{torch::randn({8, 100}, torch::kFloat64), torch::randn({8, 150}, torch::kFloat64)};
    parallel.step(batch, loss);
    large_step(*expected, *optimizer, batch, loss, 0.01);
    testing::expect_close(*net, *expected, 1e-9);
  }
}

TEST(DataParallel, WeighsLossesByWhatCounts) {
  const Tensor class_weights = torch::tensor({0.5, 2.0, 1.0}, torch::kFloat64);
  constexpr std::int64_t kIgnored = -100;
  const auto entropy = F::CrossEntropyFuncOptions().weight(class_weights).ignore_index(kIgnored);
  const auto whole = [&](Mlp& its, const Batch& rows) {
    return F::cross_entropy(its.forward(rows.data), rows.target, entropy);
  };
  const auto weighted = [&](Mlp& its, const Batch& rows) {
    const Tensor counted = rows.target != kIgnored;
    return WeightedLoss(F::cross_entropy(its.forward(rows.data), rows.target, entropy),
                        class_weights.index({rows.target.masked_select(counted)}).sum());
  };
  for (int replicas = 1; replicas <= 4; ++replicas) {
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    auto expected = testing::copy_of(net);
    const torch::optim::SGDOptions options(0.1);
    DataParallel parallel(net, options, {.replicas = replicas});
    const auto optimizer = make_optimizer(*expected, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Batch batch = testing::draw_batch(7, step);
      batch.target = torch::randint(0, 3, {7}, torch::kInt64);
      // With four replicas, replica 1 has rows 1 and 5: none that count.
      batch.target[1] = kIgnored;
      batch.target[5] = kIgnored;
      EXPECT_NEAR(parallel.step(batch, weighted), large_step(*expected, *optimizer, batch, whole), 1e-9);
      testing::expect_close(*net, *expected, 1e-9);
    }
  }
}

TEST(DataParallel, WeighsLossesByTokens) {
  const auto tokens_of = [](const Batch& rows) { return (rows.data > 0).to(torch::kFloat64); };
  const auto whole = [&](Mlp& its, const Batch& rows) {
    const Tensor mask = tokens_of(rows);
    return (its.forward(rows.data).sum(1, true) * mask).pow(2).sum() / mask.sum();
  };
  const auto weighted = [&](Mlp& its, const Batch& rows) {
    return WeightedLoss{whole(its, rows), tokens_of(rows).sum().item<double>()};
  };
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  auto expected = testing::copy_of(net);
  const torch::optim::SGDOptions options(0.01);
  DataParallel parallel(net, options, {.replicas = 3});
  const auto optimizer = make_optimizer(*expected, options);
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Batch batch = testing::draw_batch(11, step);
    EXPECT_NEAR(parallel.step(batch, weighted), large_step(*expected, *optimizer, batch, whole), 1e-9);
    EXPECT_EQ(parallel.report().weight, tokens_of(batch).sum().item<double>());
    testing::expect_close(*net, *expected, 1e-9);
  }
}

TEST(DataParallel, TakesBatchesOfManyKinds) {
  const Batch batch = testing::draw_batch(7, 1);
  auto expected = testing::make_net<Mlp>(torch::kFloat64);
  large_step(*expected, *make_optimizer(*expected, torch::optim::SGDOptions(0.1)), batch, mse);

  const auto expect_the_same = [&](const auto& its_batch, const auto& data_of, const auto& target_of) {
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 3});
    parallel.step(its_batch, [&](Mlp& its, auto& rows) {
      static_assert(std::is_same_v<std::decay_t<decltype(rows)>, std::decay_t<decltype(its_batch)>>);
      return torch::mse_loss(its.forward(data_of(rows)), target_of(rows));
    });
    testing::expect_close(*net, *expected, 1e-12);
  };
  const auto [data, target] = batch;
  expect_the_same(
      batch, [](auto& rows) { return rows.data; }, [](auto& rows) { return rows.target; });
  expect_the_same(
      std::pair(data, target), [](auto& rows) { return rows.first; }, [](auto& rows) { return rows.second; });
  expect_the_same(
      std::tuple(target, data), [](auto& rows) { return std::get<1>(rows); },
      [](auto& rows) { return std::get<0>(rows); });
  expect_the_same(
      torch::data::Example<>(data, target), [](auto& rows) { return rows.data; },
      [](auto& rows) { return rows.target; });
  expect_the_same(
      std::vector<Tensor>{data, target}, [](auto& rows) { return rows[0]; }, [](auto& rows) { return rows[1]; });
  expect_the_same(
      torch::cat({data, target}, 1), [](auto& rows) { return rows.narrow(1, 0, 4); },
      [](auto& rows) { return rows.narrow(1, 4, 3); });
  // Batches of batches.
  expect_the_same(
      std::pair(std::tuple(data), std::vector<Tensor>{target}), [](auto& rows) { return std::get<0>(rows.first); },
      [](auto& rows) { return rows.second[0]; });
  expect_the_same(
      std::tuple(std::pair(data, batch), std::vector<Tensor>{data}), [](auto& rows) { return std::get<0>(rows).first; },
      [](auto& rows) { return std::get<0>(rows).second.target; });

  DataParallel parallel(testing::make_net<Mlp>(torch::kFloat64), torch::optim::SGDOptions(0.1), {.replicas = 2});
  const auto step = [&](const auto& its_batch) {
    return testing::usage_error([&] { parallel.step(its_batch, [](Mlp&, auto&) { return Tensor(); }); });
  };
  EXPECT_EQ(step(std::pair(data, target.narrow(0, 0, 5))),
            "the parts of a batch have different numbers of rows: 7 and 5");
  EXPECT_EQ(step(torch::tensor(1.0)), "a batch is a tensor of rows; found one without dimensions");
  EXPECT_EQ(step(std::vector<Tensor>{}), "a batch of no tensors has no rows");
}

TEST(DataParallel, AFactoryComesWithGroupsOfParametersOrAnyOptimizer) {
  const Batch batch = testing::draw_batch(9, 3);
  auto expected = testing::make_net<Mlp>(torch::kFloat64);
  const auto groups = [](Mlp& net) {
    const std::vector<Tensor> all = net.parameters();
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(std::vector<Tensor>{all[0]}, std::make_unique<torch::optim::SGDOptions>(0.5));
    result.emplace_back(std::vector<Tensor>(all.begin() + 1, all.end()));
    return std::make_shared<torch::optim::SGD>(std::move(result), torch::optim::SGDOptions(0.1));
  };
  DataParallel<Mlp> parallel([] { return testing::make_net<Mlp>(torch::kFloat64); }, groups, {.replicas = 3});
  const auto optimizer = groups(*expected);
  for (int step = 0; step < 3; ++step) {
    EXPECT_NEAR(parallel.step(batch, mse), large_step(*expected, *optimizer, batch, mse), 1e-12);
    testing::expect_close(*parallel.module(), *expected, 1e-9);
  }
}

TEST(Rows, AreThoseThatPartitionIndicesDealsOut) {
  for (const std::int64_t rows : {0, 1, 2, 3, 7, 8, 9, 40}) {
    for (const int shards : {1, 2, 3, 8}) {
      const Tensor numbers = torch::arange(rows);
      for (int shard = 0; shard < shards; ++shard) {
        const Tensor mine = Rows::of_shard(rows, shards, shard).of(numbers);
        std::vector<std::size_t> found;
        for (std::int64_t i = 0; i < mine.size(0); ++i) found.push_back(mine[i].item<std::int64_t>());
        EXPECT_EQ(found, partition_indices(static_cast<std::size_t>(rows), shards, shard)) << rows << ", " << shards;
      }
    }
  }
}

// --- the same bits on any number of replicas ---

struct Trained {
  testing::Contents contents;
  std::vector<double> losses;
};

Trained train_noisy(DataParallelOptions options, const torch::optim::OptimizerOptions& optimizer, std::int64_t rows) {
  auto net = testing::make_net<Noisy>(torch::kFloat32);
  DataParallel parallel(net, optimizer, options);
  Trained trained;
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Batch batch = testing::draw_batch(rows + static_cast<std::int64_t>(step), step, torch::kFloat32);
    trained.losses.push_back(parallel.step(batch, mse));
  }
  trained.contents = testing::contents_of(*net);
  return trained;
}

TEST(DataParallel, LogicalShardsGiveTheSameBitsOnAnyNumberOfReplicas) {
  for (int shards : {8, 6, 5}) {
    for (const std::optional<Buffers> buffers :
         {std::optional<Buffers>(), std::optional(Buffers::averaged), std::optional(Buffers::follow_first)}) {
      for (const bool is_careful : {false, true}) {
        DataParallelOptions options{.logical_shards = shards, .buffers = buffers, .seed = 5};
        if (is_careful) {
          options.clip_norm = 0.2;
          options.accumulate = 2;
        } else {
          options.refuse_nan = false;
        }
        options.replicas = 1;
        const Trained expected = train_noisy(options, torch::optim::AdamOptions(0.01), 2 * shards + 3);
        for (int replicas : {2, 3, 4, 8}) {
          if (replicas > shards) continue;
          SCOPED_TRACE("shards " + std::to_string(shards) + ", replicas " + std::to_string(replicas));
          options.replicas = replicas;
          const Trained found = train_noisy(options, torch::optim::AdamOptions(0.01), 2 * shards + 3);
          EXPECT_EQ(found.losses, expected.losses);
          testing::expect_same_bits(found.contents, expected.contents);
        }
      }
    }
  }
}

TEST(DataParallel, LogicalShardsGiveTheSameBitsForFewerRowsThanShards) {
  std::optional<testing::Contents> expected;
  for (int replicas : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(replicas);
    auto net = testing::make_net<Mlp>(torch::kFloat32);
    DataParallel parallel(net, torch::optim::RMSpropOptions(0.01), {.replicas = replicas, .logical_shards = 8});
    std::uint64_t seed = 0;
    for (std::int64_t rows : {3, 1, 5, 11}) parallel.step(testing::draw_batch(rows, ++seed, torch::kFloat32), mse);
    if (!expected) expected = testing::contents_of(*net);
    testing::expect_same_bits(testing::contents_of(*net), *expected);
  }
}

TEST(DataParallel, DrawsByItsSeedAlone) {
  const auto train = [](std::uint64_t seed) {
    return train_noisy({.replicas = 2, .seed = seed}, torch::optim::SGDOptions(0.1), 8);
  };
  const Trained first = train(1);
  const Trained again = train(1);
  EXPECT_EQ(first.losses, again.losses);
  testing::expect_same_bits(first.contents, again.contents);
  EXPECT_NE(train(2).losses, first.losses);
}

TEST(DataParallel, LeavesTheCallersGeneratorAndThreadsAlone) {
  const int threads = at::get_num_threads();
  torch::manual_seed(3);
  const Tensor expected = torch::rand({4});
  auto net = testing::make_net<Noisy>(torch::kFloat32);
  const Batch batch = testing::draw_batch(8, 1, torch::kFloat32);
  torch::manual_seed(3);
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 3});
  parallel.step(batch, mse);
  EXPECT_THROW(parallel.step(batch, [](Noisy&, const Batch&) -> Tensor { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_TRUE(testing::has_same_bits(torch::rand({4}), expected));
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(DataParallel, GoesOnWithTheDrawsOfTheStepsThatFollow) {
  const Batch batch = testing::draw_batch(8, 1);
  const auto train = [&](DataParallel<Noisy>& parallel, int steps) {
    double loss = 0;
    for (int step = 0; step < steps; ++step) loss = parallel.step(batch, mse);
    return loss;
  };
  auto whole = testing::make_net<Noisy>(torch::kFloat64);
  DataParallel in_one_go(whole, torch::optim::SGDOptions(0.1), {.replicas = 2, .seed = 3});
  const double expected = train(in_one_go, 5);
  EXPECT_EQ(in_one_go.steps_taken(), 5u);
  auto net = testing::make_net<Noisy>(torch::kFloat64);
  {
    DataParallel first(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .seed = 3});
    train(first, 3);
  }
  DataParallel resumed(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .seed = 3});
  resumed.go_on_after(3);
  EXPECT_EQ(train(resumed, 2), expected);
}

// --- algorithms and compressions ---

TEST(DataParallel, CarriesOutEveryAlgorithmAsNamed) {
  for (const AllReduceStrategy& algorithm : own_all_reduce_strategies()) {
    if (std::holds_alternative<Auto>(algorithm)) continue;
    for (int replicas : {1, 2, 3, 4}) {
      SCOPED_TRACE(to_string(algorithm) + ", replicas " + std::to_string(replicas));
      auto net = testing::make_net<Mlp>(torch::kFloat64);
      auto expected = testing::copy_of(net);
      const torch::optim::AdamOptions options(0.01);
      DataParallel parallel(net, options, {.replicas = replicas, .algorithm = algorithm, .clip_norm = 0.5});
      EXPECT_THAT(parallel.describe(),
                  HasSubstr("gradients all-reduced by " + to_string(algorithm) + ", then updated"));
      const auto optimizer = make_optimizer(*expected, options);
      std::uint64_t seed = 0;
      for (std::int64_t rows : {7, 2, 9}) {
        const Batch batch = testing::draw_batch(rows, ++seed);
        parallel.step(batch, mse);
        large_step(*expected, *optimizer, batch, mse, 0.5);
        testing::expect_close(*net, *expected, 1e-8);
      }
    }
  }
}

TEST(DataParallel, RefusesAnAlgorithmThatThreadsDoNotHave) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  EXPECT_THAT(testing::usage_error([&] {
                DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .algorithm = Gloo{}});
                parallel.step(testing::draw_batch(4, 1), mse);
              }),
              HasSubstr("Gloo"));
}

TEST(DataParallel, CompressedGradientsTrainToo) {
  for (const Compression& compression : compressions()) {
    if (std::holds_alternative<NoCompression>(compression)) continue;
    for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{})}) {
      SCOPED_TRACE(to_string(compression) + ", " + to_string(algorithm));
      auto net = testing::make_net<Mlp>(torch::kFloat32);
      auto plain = testing::copy_of(net);
      const torch::optim::SGDOptions options(0.2);
      DataParallel parallel(net, options, {.replicas = 3, .algorithm = algorithm, .compression = compression});
      DataParallel uncompressed(plain, options, {.replicas = 3});
      EXPECT_THAT(parallel.describe(),
                  HasSubstr("by " + to_string(algorithm) + ", compressed by " + to_string(compression)));
      const Batch batch = testing::draw_batch(10, 1, torch::kFloat32);
      const double first = parallel.step(batch, mse);
      uncompressed.step(batch, mse);
      for (int step = 0; step < 60; ++step) {
        parallel.step(batch, mse);
        uncompressed.step(batch, mse);
      }
      EXPECT_LT(parallel.step(batch, mse), 0.7 * first);
      const bool is_half =
          std::holds_alternative<Float16>(compression) || std::holds_alternative<BFloat16>(compression);
      if (is_half) testing::expect_close(*net, *plain, 0.02);
      std::uint64_t bytes = 0;
      for (const torch::Tensor& parameter : net->parameters()) bytes += parameter.nbytes();
      EXPECT_EQ(parallel.compression_tally().gradients, Bytes{62 * 3 * bytes}) << "of all steps and replicas";
      EXPECT_GT(parallel.compression_tally().saved(), 0);
      EXPECT_EQ(uncompressed.compression_tally().gradients, Bytes{0});
      for (const auto& item : net->named_parameters()) EXPECT_EQ(item.value().scalar_type(), torch::kFloat32);
    }
  }
}

TEST(DataParallel, CompressionAndAccumulationGoTogether) {
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  auto expected = testing::copy_of(net);
  const torch::optim::SGDOptions options(0.1);
  DataParallel parallel(net, options, {.replicas = 2, .compression = TopK{.fraction = 1}, .accumulate = 2});
  const auto optimizer = make_optimizer(*expected, options);
  const Batch first = testing::draw_batch(7, 1);
  const Batch second = testing::draw_batch(4, 2);
  parallel.step(first, mse);
  parallel.step(second, mse);
  large_step(*expected, *optimizer, {torch::cat({first.data, second.data}), torch::cat({first.target, second.target})},
             mse);
  testing::expect_close(*net, *expected, 1e-9);
}

// --- clipping and accumulation ---

TEST(DataParallel, ClipsAndAccumulatesAsTheLargeBatchDoes) {
  for (double clip_norm : {0.0, 0.05, 1e9}) {
    for (int accumulate : {1, 3}) {
      for (int replicas : {1, 2, 4}) {
        SCOPED_TRACE("clip " + std::to_string(clip_norm) + ", accumulate " + std::to_string(accumulate) +
                     ", replicas " + std::to_string(replicas));
        auto net = testing::make_net<Mlp>(torch::kFloat64);
        auto expected = testing::copy_of(net);
        const torch::optim::AdamOptions options(0.01);
        DataParallel parallel(net, options, {.replicas = replicas, .clip_norm = clip_norm, .accumulate = accumulate});
        const auto optimizer = make_optimizer(*expected, options);
        std::vector<Batch> batches;
        std::uint64_t seed = 0;
        for (std::int64_t rows : {7, 10, 3, 5, 1, 4}) {
          batches.push_back(testing::draw_batch(rows, ++seed));
          const testing::Contents before = testing::contents_of(*net);
          parallel.step(batches.back(), mse);
          const bool is_due = static_cast<int>(batches.size()) == accumulate;
          EXPECT_EQ(parallel.report().updated, is_due);
          if (!is_due) {
            testing::expect_same_bits(testing::contents_of(*net), before);
            continue;
          }
          large_step(*expected, *optimizer, joined(batches), mse, clip_norm);
          testing::expect_close(*net, *expected, 1e-9);
          EXPECT_EQ(parallel.report().gradient_norm > 0, clip_norm > 0);
          batches.clear();
        }
      }
    }
  }
}

// A loss that needs only one of the layers.
TEST(DataParallel, AccumulatesParametersThatOnlySomeStepsUse) {
  const auto use_first = [](Mlp& its, const Batch& rows) { return its.hidden(rows.data).pow(2).mean(); };
  const auto use_second = [](Mlp& its, const Batch& rows) {
    return its.out(torch::cat({rows.data, rows.data.narrow(1, 0, 2)}, 1)).pow(2).mean();
  };
  const Batch batch = testing::draw_batch(6, 1);
  for (double clip_norm : {0.0, 0.1}) {
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    auto expected = testing::copy_of(net);
    DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2, .clip_norm = clip_norm, .accumulate = 3});
    parallel.step(batch, use_first);
    EXPECT_THAT(parallel.report().unused, ::testing::ElementsAre("out.weight", "out.bias"));
    parallel.step(batch, use_second);
    EXPECT_THAT(parallel.report().unused, ::testing::ElementsAre("hidden.weight", "hidden.bias"));
    parallel.step(batch, use_second);
    torch::optim::SGD optimizer(expected->parameters(), 0.1);
    large_step(
        *expected, optimizer, batch,
        [&](Mlp& its, const Batch& rows) { return (use_first(its, rows) + 2 * use_second(its, rows)) / 3; }, clip_norm);
    testing::expect_close(*net, *expected, 1e-9);
  }
}

}  // namespace
}  // namespace tutti::data_parallel_test
