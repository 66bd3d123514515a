// Compression with what it leaves out added to the next step: nothing is lost, all workers get the same.
#include <tutti/sync/gradient_compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <latch>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/sync/compression_plan.hpp>
#include <tutti/sync/threaded_gradient_sync.hpp>

#include "support/sample.hpp"
#include "support/usage_error.hpp"

namespace tutti::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<Compression> all_compressions() {
  return {NoCompression{}, TopK{0.01}, TopK{0.3}, TopK{1}, Float16{}, BFloat16{}, PowerSgd{1}, PowerSgd{3}};
}

std::vector<Compression> real_compressions() {
  std::vector<Compression> result = all_compressions();
  result.erase(result.begin());
  return result;
}

template <typename T>
std::span<T> values_of(Array array) {
  return {reinterpret_cast<T*>(array.data()), array.length()};
}

template <typename T>
std::vector<T> copy_of(Array array) {
  const std::span<T> values = values_of<T>(array);
  return {values.begin(), values.end()};
}

// What a worker's gradients are in a step, the same whatever buffers they come in.
template <typename T>
void fill(GradientBuffers& gradients, int worker, int step) {
  for (const GradientBuffers::Piece& piece : gradients.pieces()) {
    std::uint64_t name = 0;
    for (const char letter : piece.name) name = name * 31 + static_cast<unsigned char>(letter);
    RandomStream draws({name, static_cast<std::uint64_t>(worker), static_cast<std::uint64_t>(step)});
    for (T& value : values_of<T>(gradients[piece.name])) value = static_cast<T>(draws.normal());
  }
}

template <typename T>
const std::vector<T>& remains_of(const GradientCompressor& compressor, const std::string& name) {
  return std::get<std::vector<T>>(compressor.state().remains.at(name));
}

bool all_finite(const CompressorState& state) {
  const auto finite = [](const auto& entry) {
    return std::visit(
        [](const auto& values) { return std::ranges::all_of(values, [](auto v) { return std::isfinite(v); }); },
        entry.second);
  };
  return std::ranges::all_of(state.remains, finite) && std::ranges::all_of(state.factors, finite);
}

std::vector<NamedShape> shapes_of_length(std::int64_t length) {
  if (length == 1000) return {{"matrix", {25, 4, 10}}, {"line", {1000}}};
  return {{"line", {length}}, {"square", {length, length}}};
}

// --- nothing is lost ---

struct Point {
  Compression compression;
  int workers;
  std::int64_t length;
};

// What was applied in all steps, and what remains with the workers, is the mean of all that they brought.
template <typename T>
void expect_nothing_lost(const Point& point) {
  constexpr int kSteps = 6;
  const auto& [compression, workers, length] = point;
  const std::size_t elements = GradientBuffers(shapes_of_length(length)).all().length();
  std::vector<double> applied(elements);
  std::vector<std::vector<double>> brought(static_cast<std::size_t>(workers), std::vector<double>(elements));
  std::vector<std::vector<double>> remains = brought;
  run_ranks(workers, [&, compression = compression, length = length](Communicator& world) {
    const int worker = world.rank().value;
    GradientCompressor compressor(compression, {.reproducible = true});
    GradientBuffers gradients(shapes_of_length(length), data_type_of<T>);
    for (int step = 0; step < kSteps; ++step) {
      fill<T>(gradients, worker, step);
      for (std::size_t i = 0; i < elements; ++i) brought[world.rank().value][i] += values_of<T>(gradients.all())[i];
      compressor.mean(world, gradients);
      if (worker == 0)
        for (std::size_t i = 0; i < elements; ++i) applied[i] += values_of<T>(gradients.all())[i];
    }
    if (std::holds_alternative<NoCompression>(compression)) return;
    for (const GradientBuffers::Piece& piece : gradients.pieces())
      std::ranges::copy(remains_of<T>(compressor, piece.name),
                        remains[world.rank().value].begin() + static_cast<std::ptrdiff_t>(piece.slice.first));
  });
  // The mean of halves is rounded to a half, and only a worker alone has nothing to round.
  const double step_error = workers == 1                                    ? 0
                            : std::holds_alternative<Float16>(compression)  ? 4 * 0x1p-11
                            : std::holds_alternative<BFloat16>(compression) ? 4 * 0x1p-8
                                                                            : 0;
  const double tolerance = kSteps * (step_error + (sizeof(T) == 4 ? 2e-5 : 1e-13));
  for (std::size_t i = 0; i < elements; ++i) {
    double expected = 0;
    double found = applied[i] * workers;
    for (std::size_t worker = 0; worker < brought.size(); ++worker) {
      expected += brought[worker][i];
      found += remains[worker][i];
    }
    ASSERT_NEAR(found / workers, expected / workers, tolerance)
        << to_string(compression) << " of " << to_string(data_type_of<T>) << ", " << workers << " workers, length "
        << length << ", element " << i;
  }
}

TEST(GradientCompressor, LosesNothing) {
  Sample sample(kEveryWhereSanitized);
  for (const Compression& compression : all_compressions()) {
    for (const int workers : {1, 2, 3, 5}) {
      for (const std::int64_t length : {0, 1, 7, 1000}) {
        if (!sample.takes()) continue;
        expect_nothing_lost<float>({compression, workers, length});
        expect_nothing_lost<double>({compression, workers, length});
      }
    }
  }
}

// Step by step by the book: what is sent, what that leaves, and the mean of what all sent.
template <typename T, typename Half>
void expect_halves_by_the_book(const Compression& compression, int workers) {
  constexpr int kSteps = 5;
  constexpr std::size_t kLength = 100;
  std::vector<std::vector<T>> remains(static_cast<std::size_t>(workers), std::vector<T>(kLength));
  std::vector<std::vector<T>> means;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Half>> sent;
    std::vector<const void*> sources;
    for (int worker = 0; worker < workers; ++worker) {
      GradientBuffers gradients({{"line", {kLength}}}, data_type_of<T>);
      fill<T>(gradients, worker, step);
      std::vector<Half>& halves = sent.emplace_back();
      std::vector<T>& kept = remains[static_cast<std::size_t>(worker)];
      for (std::size_t i = 0; i < kLength; ++i) {
        const T whole = values_of<T>(gradients.all())[i] + kept[i];
        halves.push_back(Half::from_float(static_cast<float>(whole)));
        kept[i] = whole - static_cast<T>(halves.back().to_float());
      }
    }
    for (const std::vector<Half>& halves : sent) sources.push_back(halves.data());
    std::vector<Half> mean(kLength);
    void* destination = mean.data();
    fold_all(ReduceOp::mean, data_type_of<Half>, sources, {&destination, 1}, kLength);
    means.emplace_back();
    for (const Half half : mean) means.back().push_back(static_cast<T>(half.to_float()));
  }
  run_ranks(workers, [&](Communicator& world) {
    GradientCompressor compressor(compression, {.reproducible = true});
    GradientBuffers gradients({{"line", {kLength}}}, data_type_of<T>);
    for (int step = 0; step < kSteps; ++step) {
      fill<T>(gradients, world.rank().value, step);
      compressor.mean(world, gradients);
      EXPECT_EQ(copy_of<T>(gradients.all()), means[static_cast<std::size_t>(step)]) << to_string(compression);
    }
    EXPECT_EQ(remains_of<T>(compressor, "line"), remains[static_cast<std::size_t>(world.rank().value)]);
  });
}

TEST(GradientCompressor, SendsHalvesByTheBook) {
  for (const int workers : {1, 2, 3, 5}) {
    expect_halves_by_the_book<float, float16>(Float16{}, workers);
    expect_halves_by_the_book<double, float16>(Float16{}, workers);
    expect_halves_by_the_book<float, bfloat16>(BFloat16{}, workers);
    expect_halves_by_the_book<double, bfloat16>(BFloat16{}, workers);
  }
}

TEST(GradientCompressor, SendsTheLargestOfEachPieceAndKeepsTheRest) {
  run_ranks(2, [](Communicator& world) {
    GradientCompressor compressor(TopK{0.25});
    std::vector<float> memory =
        world.rank() == Rank{0} ? std::vector<float>{1, -8, 3, 4, 100, 200} : std::vector<float>{9, 2, 3, 4, 300, 100};
    GradientBuffers gradients({{"a", {4}}, {"b", {2}}}, memory);
    compressor.mean(world, gradients);
    EXPECT_THAT(memory, ElementsAre(4.5, -4, 0, 0, 150, 100));
    EXPECT_THAT(remains_of<float>(compressor, "b"),
                world.rank() == Rank{0} ? ElementsAre(100, 0) : ElementsAre(0, 100));
    // With zeros from now on, what remained comes, the largest first.
    std::ranges::fill(memory, 0.0f);
    compressor.mean(world, gradients);
    EXPECT_THAT(memory, ElementsAre(0, 0, 0, 4, 50, 50));
    std::ranges::fill(memory, 0.0f);
    compressor.mean(world, gradients);
    EXPECT_THAT(memory, ElementsAre(0, 0, 3, 0, 0, 0));
  });
}

TEST(GradientCompressor, ReallyCompressesForAWorkerAlone) {
  run_ranks(1, [](Communicator& world) {
    GradientCompressor compressor(TopK{0.5});
    std::vector<double> memory = {1, 2, 3, 4};
    GradientBuffers gradients({{"a", {4}}}, memory);
    compressor.mean(world, gradients);
    EXPECT_THAT(memory, ElementsAre(0, 0, 3, 4));
  });
}

// --- the same for all, always ---

std::vector<std::vector<float>> results_of(const Compression& compression, const AllReduceStrategy& algorithm,
                                           int workers) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(workers));
  run_ranks(workers, [&](Communicator& world) {
    GradientCompressor compressor(compression, {.algorithm = algorithm, .seed = 5});
    GradientBuffers gradients({{"matrix", {12, 20}}, {"line", {37}}});
    for (int step = 0; step < 3; ++step) {
      fill<float>(gradients, world.rank().value, step);
      compressor.mean(world, gradients);
      std::ranges::copy(values_of<float>(gradients.all()), std::back_inserter(results[world.rank().value]));
    }
  });
  return results;
}

TEST(GradientCompressor, GivesAllWorkersAndAllRunsTheSameBits) {
  for (const Compression& compression : all_compressions()) {
    for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{}),
                                               AllReduceStrategy(Tree{}), AllReduceStrategy(SharedSlices{})}) {
      for (const int workers : {2, 3, 5}) {
        const auto once = results_of(compression, algorithm, workers);
        EXPECT_THAT(once, Each(once[0])) << to_string(compression) << " by " << to_string(algorithm);
        EXPECT_EQ(results_of(compression, algorithm, workers), once)
            << to_string(compression) << " by " << to_string(algorithm);
      }
    }
  }
}

// By name, and whichever buffers they came in: the means of the last step, and what remained.
std::pair<std::map<std::string, std::vector<float>>, CompressorState> after_steps_in(
    const Compression& compression, const std::vector<std::vector<std::vector<NamedShape>>>& buckets_by_step) {
  std::map<std::string, std::vector<float>> means;
  CompressorState state;
  run_ranks(3, [&](Communicator& world) {
    GradientCompressor compressor(compression, {.reproducible = true});
    for (std::size_t step = 0; step < buckets_by_step.size(); ++step) {
      for (const std::vector<NamedShape>& bucket : buckets_by_step[step]) {
        GradientBuffers gradients(bucket);
        fill<float>(gradients, world.rank().value, static_cast<int>(step));
        compressor.mean(world, gradients);
        if (world.rank() != Rank{1}) continue;
        for (const GradientBuffers::Piece& piece : gradients.pieces())
          means[piece.name] = copy_of<float>(gradients[piece.name]);
      }
    }
    if (world.rank() == Rank{1}) state = compressor.state();
  });
  return {means, state};
}

TEST(GradientCompressor, DoesNotCareInWhichBuffersGradientsCome) {
  const NamedShape a{"a", {10}};
  const NamedShape b{"b", {12, 20}};
  const NamedShape c{"c", {101}};
  for (const Compression& compression : all_compressions()) {
    const auto together = after_steps_in(compression, {{{a, b, c}}, {{a, b, c}}, {{a, b, c}}, {{a, b, c}}});
    const auto apart = after_steps_in(compression, {{{a, b, c}}, {{a, b}, {c}}, {{c}, {b, a}}, {{c, a}, {b}}});
    EXPECT_EQ(together.first, apart.first) << to_string(compression);
    EXPECT_TRUE(together.second == apart.second) << to_string(compression);
  }
}

TEST(GradientCompressor, GoesOnFromAState) {
  for (const Compression& compression : all_compressions()) {
    run_ranks(2, [&](Communicator& world) {
      GradientCompressor first(compression, {.seed = 1});
      GradientBuffers gradients({{"matrix", {12, 20}}, {"line", {37}}}, DataType::float64);
      for (int step = 0; step < 3; ++step) {
        fill<double>(gradients, world.rank().value, step);
        first.mean(world, gradients);
      }
      GradientCompressor second(compression, {.seed = 2});
      second.restore(first.state());
      EXPECT_TRUE(second.state() == first.state());
      fill<double>(gradients, world.rank().value, 3);
      first.mean(world, gradients);
      const std::vector<double> expected = copy_of<double>(gradients.all());
      fill<double>(gradients, world.rank().value, 3);
      second.mean(world, gradients);
      EXPECT_EQ(copy_of<double>(gradients.all()), expected) << to_string(compression);
      EXPECT_TRUE(second.state() == first.state()) << to_string(compression);
    });
  }
}

// --- training ---

// Each of two workers wants its own target; the sum of the squares is least halfway between. Of each row's first
// element they want the opposite, more than of anything else: where nothing is kept, a TopK sends that for ever and
// nothing else.
double distance_after_descent(const Compression& compression, bool is_kept) {
  constexpr int kSteps = 4000;
  constexpr float kRate = 0.01f;
  constexpr std::size_t kLength = 32;
  double distance = 0;
  run_ranks(2, [&](Communicator& world) {
    std::vector<float> target(kLength);
    for (std::size_t i = 0; i < kLength; ++i) target[i] = static_cast<float>(i % 8) / 2 - 1;
    std::vector<float> own = target;
    own[0] += world.rank() == Rank{0} ? 20.0f : -20.0f;
    GradientCompressor kept(compression);
    GradientBuffers gradients({{"weights", {4, 8}}});
    std::vector<float> weights(kLength);
    for (int step = 0; step < kSteps; ++step) {
      const std::span<float> gradient = values_of<float>(gradients.all());
      for (std::size_t i = 0; i < kLength; ++i) gradient[i] = weights[i] - own[i];
      if (is_kept) {
        kept.mean(world, gradients);
      } else {
        GradientCompressor forgetful(compression);
        forgetful.mean(world, gradients);
      }
      for (std::size_t i = 0; i < kLength; ++i) weights[i] -= kRate * gradient[i];
    }
    if (world.rank() != Rank{0}) return;
    for (std::size_t i = 0; i < kLength; ++i) distance = std::max(distance, double{std::abs(weights[i] - target[i])});
  });
  return distance;
}

TEST(GradientCompressor, DescentReachesTheOptimumWithEachAndWithATopKOnlyBecauseItKeepsTheRest) {
  for (const Compression& compression :
       {Compression(NoCompression{}), Compression(TopK{1.0 / 32}), Compression(TopK{0.25}), Compression(Float16{}),
        Compression(BFloat16{}), Compression(PowerSgd{1}), Compression(PowerSgd{2})}) {
    EXPECT_LT(distance_after_descent(compression, true), 0.5) << to_string(compression);
  }
  EXPECT_GT(distance_after_descent(TopK{1.0 / 32}, false), 1.5);
}

TEST(GradientCompressor, PowerSgdGivesTheMeanOfMatricesOfItsRank) {
  constexpr std::size_t kRows = 20;
  constexpr std::size_t kColumns = 30;
  run_ranks(3, [](Communicator& world) {
    GradientCompressor compressor(PowerSgd{2});
    GradientBuffers gradients({{"matrix", {kRows, kColumns}}}, DataType::float64);
    const std::span<double> m = values_of<double>(gradients.all());
    // Nothing at first, which must not be all that it ever looks at, then rank 1, then 2.
    for (int step = 0; step < 6; ++step) {
      const auto element = [&](int worker, std::size_t row, std::size_t column) {
        const auto i = static_cast<double>(row);
        const auto j = static_cast<double>(column);
        if (step == 0) return 0.0;
        const double one = (worker + step) * std::sin(i) * std::cos(j);
        return step == 1 ? one : one + (worker * step + 1) * std::cos(2 * i) * std::sin(3 * j);
      };
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t j = 0; j < kColumns; ++j) m[i * kColumns + j] = element(world.rank().value, i, j);
      compressor.mean(world, gradients);
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t j = 0; j < kColumns; ++j)
          ASSERT_NEAR(m[i * kColumns + j], (element(0, i, j) + element(1, i, j) + element(2, i, j)) / 3, 1e-9)
              << "step " << step << " at " << i << ", " << j;
    }
  });
}

// --- what is no number, or too large for one ---

TEST(GradientCompressor, LetsThroughWhatIsNoNumberAndKeepsNoneOfIt) {
  for (const Compression& compression : all_compressions()) {
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      run_ranks(2, [&](Communicator& world) {
        GradientCompressor compressor(compression);
        GradientBuffers gradients({{"matrix", {12, 20}}, {"line", {37}}});
        const auto finite = [&](const char* name) {
          return std::ranges::all_of(values_of<float>(gradients[name]), [](float v) { return std::isfinite(v); });
        };
        for (int step = 0; step < 6; ++step) {
          fill<float>(gradients, world.rank().value, step);
          if (world.rank() == Rank{1} && (step == 0 || step == 3)) {
            // More than a TopK of a hundredth takes.
            for (std::size_t i = 0; i < 20; ++i) values_of<float>(gradients["matrix"])[i] = wrong;
            for (std::size_t i = 0; i < 5; ++i) values_of<float>(gradients["line"])[i] = wrong;
          }
          compressor.mean(world, gradients);
          EXPECT_EQ(finite("matrix"), step != 0 && step != 3) << to_string(compression) << ", step " << step;
          EXPECT_EQ(finite("line"), step != 0 && step != 3) << to_string(compression) << ", step " << step;
          EXPECT_TRUE(all_finite(compressor.state())) << to_string(compression) << ", step " << step;
        }
      });
    }
  }
}

TEST(GradientCompressor, Float16BecomesNotInfiniteHoweverManyAddUp) {
  for (const AllReduceStrategy& algorithm :
       {AllReduceStrategy(Auto{}), AllReduceStrategy(Centralized{}), AllReduceStrategy(Ring{}),
        AllReduceStrategy(Tree{}), AllReduceStrategy(RecursiveDoubling{}), AllReduceStrategy(HalvingDoubling{})}) {
    for (const int workers : {1, 2, 3, 5, 7}) {
      run_ranks(workers, [&](Communicator& world) {
        GradientCompressor compressor(Float16{}, {.algorithm = algorithm});
        std::vector<float> memory = {100000, -65504, 1};
        GradientBuffers gradients({{"a", {3}}}, memory);
        std::vector<float> sum(3);
        for (int step = 0; step < 30; ++step) {
          compressor.mean(world, gradients);
          for (std::size_t i = 0; i < 3; ++i) {
            ASSERT_TRUE(std::isfinite(memory[i])) << to_string(algorithm) << ", " << workers << " workers";
            sum[i] += memory[i];
            memory[i] = 0;
          }
        }
        EXPECT_NEAR(sum[0], 100000, 200);
        EXPECT_NEAR(sum[1], -65504, 200);
        EXPECT_NEAR(sum[2], 1, 0.01);
      });
    }
  }
}

// --- failures ---

TEST(GradientCompressor, KeepsWhatRemainedWhenAPeerIsLost) {
  for (const Compression& compression : real_compressions()) {
    std::latch first_step(3);  // all have had theirs before one leaves
    run_ranks(3, [&](Communicator& world) {
      GradientCompressor compressor(compression);
      GradientBuffers gradients({{"matrix", {12, 20}}, {"line", {37}}});
      fill<float>(gradients, world.rank().value, 0);
      compressor.mean(world, gradients);
      first_step.arrive_and_wait();
      if (world.rank() == Rank{2}) return;
      fill<float>(gradients, world.rank().value, 1);
      const std::vector<float> before = copy_of<float>(gradients.all());
      const CompressorState state = compressor.state();
      const Bytes sent = compressor.tally().sent;
      EXPECT_THROW(compressor.mean(world, gradients), PeerError) << to_string(compression);
      EXPECT_TRUE(compressor.state() == state) << to_string(compression);
      EXPECT_EQ(compressor.tally().sent, sent);
      EXPECT_EQ(copy_of<float>(gradients.all()), before) << to_string(compression);
      const std::vector<Rank> left = {Rank{0}, Rank{1}};
      Communicator rest = world.rebuild(left);
      compressor.mean(rest, gradients);
      EXPECT_GT(compressor.tally().sent, sent);
    });
  }
}

TEST(GradientCompressor, KeepsWhatRemainedWhenTheSecondHalfOfAnExchangeFails) {
  // A step of PowerSgd is two calls, which are counted from 1.
  const auto strike = [](const StepEvent& event) {
    if (event.sequence == 4) throw std::runtime_error("struck");
  };
  int struck = 0;
  EXPECT_ANY_THROW(run_ranks(1,
                             [&](Communicator& world) {
                               GradientCompressor compressor(PowerSgd{1});
                               GradientBuffers gradients({{"matrix", {12, 20}}, {"line", {37}}});
                               fill<float>(gradients, 0, 0);
                               compressor.mean(world, gradients);
                               fill<float>(gradients, 0, 1);
                               const std::vector<float> before = copy_of<float>(gradients.all());
                               const CompressorState state = compressor.state();
                               try {
                                 compressor.mean(world, gradients);
                               } catch (...) {
                                 ++struck;
                                 EXPECT_TRUE(compressor.state() == state);
                                 EXPECT_EQ(copy_of<float>(gradients.all()), before);
                                 throw;
                               }
                             },
                             {.communicator = {.on_step = strike}}));
  EXPECT_EQ(struck, 1);
}

TEST(GradientCompressor, RefusesAPieceThatChangesAndRemainsThatAreNone) {
  run_ranks(1, [](Communicator& world) {
    GradientCompressor compressor(TopK{});
    GradientBuffers gradients({{"none", {0}}, {"conv.weight", {3, 4}}});
    compressor.mean(world, gradients);
    const CompressorState state = compressor.state();
    GradientBuffers longer({{"new", {2}}, {"conv.weight", {3, 5}}});
    EXPECT_EQ(usage_error([&] { compressor.mean(world, longer); }),
              "the gradient 'conv.weight' had 12 elements of float32 before, found 15 of float32");
    GradientBuffers some({{"none", {1}}});
    EXPECT_EQ(usage_error([&] { compressor.mean(world, some); }),
              "the gradient 'none' had 0 elements of float32 before, found 1 of float32");
    GradientBuffers wider({{"conv.weight", {3, 4}}}, DataType::float64);
    EXPECT_EQ(usage_error([&] { compressor.mean(world, wider); }),
              "the gradient 'conv.weight' had 12 elements of float32 before, found 12 of float64");
    EXPECT_EQ(usage_error([&] {
                compressor.restore(
                    {.remains = {{"a", std::vector<float>{std::numeric_limits<float>::quiet_NaN()}}}, .factors = {}});
              }),
              "what remains of the gradient 'a' is infinite or no number");
    EXPECT_TRUE(compressor.state() == state);
  });
  EXPECT_EQ(usage_error([] { GradientCompressor(TopK{2}); }),
            "the fraction of a TopK must be above 0 and at most 1, found 2");
}

// --- the tally ---

TEST(CompressionTally, CountsTheBytesThatAWorkerContributed) {
  struct Expected {
    Compression compression;
    std::uint64_t of_float32;
    std::uint64_t of_float64;
  };
  for (const auto& [compression, of_float32, of_float64] :
       {Expected{NoCompression{}, 610 * 4, 610 * 8}, Expected{TopK{0.01}, (6 + 1) * 8, (6 + 1) * 12},
        Expected{TopK{1}, 610 * 8, 610 * 12}, Expected{Float16{}, 610 * 2, 610 * 2},
        Expected{BFloat16{}, 610 * 2, 610 * 2}, Expected{PowerSgd{2}, (2 * 50 + 10) * 4, (2 * 50 + 10) * 8},
        // Its factors would take more than the matrix.
        Expected{PowerSgd{12}, 610 * 4, 610 * 8}}) {
    run_ranks(2, [&, compression = compression, of_float32 = of_float32, of_float64 = of_float64](Communicator& world) {
      for (const DataType type : {DataType::float32, DataType::float64}) {
        GradientCompressor compressor(compression);
        EXPECT_EQ(compressor.tally().sent, Bytes{0});
        GradientBuffers gradients({{"matrix", {20, 30}}, {"line", {10}}}, type);
        for (int step = 0; step < 3; ++step) compressor.mean(world, gradients);
        const CompressionTally tally = compressor.tally();
        const std::uint64_t sent = 3 * (type == DataType::float32 ? of_float32 : of_float64);
        EXPECT_EQ(tally.gradients, Bytes{3 * 610 * size_of(type)});
        EXPECT_EQ(tally.sent, Bytes{sent}) << to_string(compression);
        std::size_t planned = 0;
        const std::vector<GradientShape> shapes{{20, 30}, {10}};
        for (const CompressedMessage& message : compressed_messages(compression, shapes, type))
          planned += message.bytes;
        EXPECT_EQ(3 * planned, sent) << to_string(compression);
        EXPECT_EQ(tally.saved(), static_cast<std::int64_t>(tally.gradients.value) - static_cast<std::int64_t>(sent));
      }
    });
  }
}

TEST(CompressionTally, IsALine) {
  EXPECT_EQ((CompressionTally{TopK{}, Bytes{60 << 20}, Bytes{1258291}}.line()),
            "TopK:0.01 sent 1.2 MiB instead of 60 MiB (2.0 %)");
  EXPECT_EQ((CompressionTally{Float16{}, Bytes{2000}, Bytes{1000}}.line()),
            "Float16 sent 1000 B instead of 2 KiB (50.0 %)");
  EXPECT_EQ((CompressionTally{NoCompression{}, Bytes{0}, Bytes{0}}.line()), "NoCompression sent 0 B instead of 0 B");
}

// --- as part of a GradientSync ---

TEST(CompressedGradientSync, CompressesWithAndWithoutNames) {
  run_parallel_workers(2,
                       [](ThreadedGradientSync& sync) {
                         std::vector<float> values = {1, 2, 30, 40};
                         sync.sync_gradients(values);
                         EXPECT_THAT(values, ElementsAre(0, 0, 30, 40));
                         EXPECT_THAT(remains_of<float>(sync.compressor(), ""), ElementsAre(1, 2, 0, 0));
                         values = {1, 2, 30, 40};
                         GradientBuffers named({{"a", {2}}, {"b", {2}}}, values);
                         sync.sync_buffers(named);
                         EXPECT_THAT(values, ElementsAre(0, 2, 0, 40));
                         EXPECT_THAT(remains_of<float>(sync.compressor(), "a"), ElementsAre(1, 0));
                         values = {0, 0, 0, 0};
                         sync.sync_gradients(values);
                         EXPECT_THAT(values, ElementsAre(1, 2, 0, 0)) << "what remained of the array without a name";
                         EXPECT_EQ(sync.compressor().tally().line(), "TopK:0.5 sent 48 B instead of 48 B (100.0 %)");
                       },
                       {.sync = {.compression = TopK{0.5}}});
}

TEST(CompressedGradientSync, GivesTheMeanToTheRootAlone) {
  run_parallel_workers(
      3,
      [](ThreadedGradientSync& sync) {
        std::vector<double> values = {static_cast<double>(sync.worker_id()), 0.25};
        GradientBuffers named({{"a", {2}}}, values);
        sync.sync_buffers(named);
        EXPECT_THAT(values, ElementsAre(sync.worker_id() == 1 ? 1 : sync.worker_id(), 0.25));
        EXPECT_EQ(sync.compressor().tally().sent, Bytes{4});
      },
      {.sync = {.strategy = SyncStrategy::reduce_to_root, .root = Rank{1}, .compression = BFloat16{}}});
}

TEST(CompressedGradientSync, GoesOnWithWhatRemainedWhenAWorkerLeaves) {
  std::latch first_step(3);
  run_parallel_workers(3,
                       [&](ThreadedGradientSync& sync) {
                         std::vector<float> values = {10, 1};
                         GradientBuffers named({{"a", {2}}}, values);
                         sync.sync_buffers(named);
                         EXPECT_THAT(values, ElementsAre(10, 0));
                         first_step.arrive_and_wait();
                         if (sync.worker_id() == 2) return;
                         values = {0, 0};
                         EXPECT_THROW(sync.sync_buffers(named), PeerError);
                         EXPECT_THAT(remains_of<float>(sync.compressor(), "a"), ElementsAre(0, 1));
                         EXPECT_THAT(values, ElementsAre(0, 0));
                         sync.sync_buffers(named);
                         EXPECT_EQ(sync.num_workers(), 2);
                         EXPECT_THAT(values, ElementsAre(0, 1));
                       },
                       {.sync = {.compression = TopK{0.5}}});
}

TEST(CompressedGradientSync, FailsForAllWhereWorkersNameDifferentCompressionsAndGoesOn) {
  run_ranks(2, [](Communicator& world) {
    GradientCompressor same(Float16{});
    GradientCompressor different(world.rank() == Rank{0} ? Compression(Float16{}) : Compression(TopK{0.5}));
    std::vector<float> values = {10, 1};
    GradientBuffers named({{"a", {2}}}, values);
    try {
      different.mean(world, named);
      ADD_FAILURE() << "nobody noticed";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.kind(), FailureKind::disagreement) << error.what();
    }
    EXPECT_THAT(values, ElementsAre(10, 1));
    EXPECT_TRUE(different.state().remains.empty());
    same.mean(world, named);
    EXPECT_THAT(values, ElementsAre(10, 1));
  });
}

// Whoever is wrong, in which round, and how: everybody hears of it, nothing changes, and the next round works.
TEST(CompressedGradientSync, FailsForAllWhereAWorkerBringsSomethingElseAndGoesOn) {
  for (const Compression& compression : {Compression(TopK{0.01}), Compression(TopK{0.5}), Compression(Float16{}),
                                         Compression(BFloat16{}), Compression(PowerSgd{1})}) {
    for (const int wrong_round : {0, 2}) {
      for (const std::size_t wrong_length : {110, 130}) {
        SCOPED_TRACE(to_string(compression) + ", round " + std::to_string(wrong_round));
        run_ranks(3, [&](Communicator& world) {
          const int me = world.rank().value;
          CollectiveGradientSync sync(std::move(world), {.compression = compression});
          for (int round = 0; round < 4; ++round) {
            const bool is_wrong = round == wrong_round && me == 1;
            std::vector<float> gradients(is_wrong ? wrong_length : 120, 1.0f);
            if (round != wrong_round) {
              sync.sync_gradients(gradients);
              continue;
            }
            const CompressorState before = sync.compressor().state();
            try {
              sync.sync_gradients(gradients);
              ADD_FAILURE() << "worker " << me << " heard nothing";
            } catch (const PeerError& error) {
              EXPECT_EQ(error.ranks(), std::vector{Rank{1}}) << error.what();
            } catch (const UsageError& error) {
              EXPECT_EQ(me, 1) << error.what();
            }
            EXPECT_EQ(sync.compressor().state(), before);
            EXPECT_THAT(gradients, Each(1.0f));
          }
        });
      }
    }
  }
}

TEST(CompressedGradientSync, TellsTheOthersOfAnArrayThatCannotBeCompressed) {
  run_ranks(2, [](Communicator& world) {
    const bool is_wrong = world.rank() == Rank{1};
    CollectiveGradientSync sync(std::move(world), {.compression = Float16{}});
    std::vector<float> gradients{1, 2};
    std::vector<std::int32_t> whole_numbers{1, 2};
    if (is_wrong) {
      EXPECT_THROW(sync.sync_gradients(whole_numbers), UsageError);
    } else {
      EXPECT_THROW(sync.sync_gradients(gradients), PeerError);
    }
    sync.sync_gradients(gradients);
    EXPECT_THAT(gradients, ElementsAre(1, 2));
  });
}

TEST(CompressedGradientSync, NumbersThatMustArriveAsTheyAreDo) {
  run_ranks(2, [](Communicator& world) {
    const double mine = world.rank() == Rank{0} ? 40'001 : 1e9;
    CollectiveGradientSync sync(std::move(world), {.compression = Float16{}});
    std::vector<double> numbers{mine};
    sync.sync_exactly(numbers);
    EXPECT_EQ(numbers[0], (40'001 + 1e9) / 2);
  });
}

TEST(GradientCompressor, WhatARoundLeavesOutCountsOnceItIsKept) {
  run_ranks(2, [](Communicator& world) {
    for (const Compression& compression : {Compression(TopK{0.5}), Compression(Float16{}), Compression(PowerSgd{1})}) {
      SCOPED_TRACE(to_string(compression));
      GradientCompressor compressor(compression);
      GradientBuffers gradients({{"a", {2, 2}}});
      const std::span values(reinterpret_cast<float*>(gradients.all().data()), 4);
      const auto bring = [&] { std::ranges::copy(std::array{1.0001f, 2.5f, -3.3f, 4.7f}, values.begin()); };
      bring();
      compressor.exchange(world, gradients);
      const std::vector<float> first(values.begin(), values.end());
      compressor.forget();
      EXPECT_TRUE(compressor.state().remains.empty());
      EXPECT_EQ(compressor.tally().gradients, Bytes{0});
      bring();
      compressor.exchange(world, gradients);
      EXPECT_TRUE(std::ranges::equal(values, first)) << "the round that was forgotten still shows";
      compressor.keep();
      EXPECT_EQ(compressor.state().remains.size(), 1u);
      EXPECT_EQ(compressor.tally().gradients, Bytes{16});
    }
  });
}

TEST(CompressedGradientSync, RefusesACompressionThatCannotBe) {
  EXPECT_EQ(usage_error([] { ThreadedGradientSync::new_workers(1, {.sync = {.compression = PowerSgd{0}}}); }),
            "the rank of a PowerSgd must be at least 1, found 0");
}

}  // namespace
}  // namespace tutti::testing
