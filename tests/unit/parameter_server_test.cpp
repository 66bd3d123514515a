#include <tutti/coordinate/parameter_server.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/one_array.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::Consistency;
using testing::doubles;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::numbers_of;
using testing::one_array;
using ::testing::Pair;
using testing::usage_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ParameterServerOptions synchronous() { return {.consistency = Consistency::synchronous}; }
ParameterServerOptions bounded(std::int64_t max_staleness) {
  return {.consistency = Consistency::bounded_staleness, .max_staleness = max_staleness};
}

// What a server has after whatever was done to it.
double number_of(const ParameterServer& server) { return numbers_of(server.get_model_parameters())[0]; }

// --- asynchronous ---

TEST(ParameterServer, ChangesTheModelByEachPush) {
  ParameterServer server(Sgd{.lr = 0.5}, 2);
  server.set_model_parameters(doubles({10, 20}));
  const ModelSnapshot now = server.pull(0);
  EXPECT_EQ(now.version, 0);
  server.push(0, doubles({2, 4}), {.base = now});
  server.push(1, doubles({2, 0}));
  EXPECT_THAT(numbers_of(server.get_model_parameters()), ElementsAre(8, 18));
  EXPECT_THAT(numbers_of(*now.parameters), ElementsAre(10, 20));
  EXPECT_EQ(server.version(), 2);
  EXPECT_THAT(server.clocks(), ElementsAre(1, 1));
}

TEST(ParameterServer, TakesWeightsRatesAndDirectionsAsTheyAre) {
  ParameterServer server(Sgd{.lr = 0.5}, 1);
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({1}), {.weight = 4});
  EXPECT_EQ(number_of(server), -2);
  server.push(0, doubles({1}), {.rate_factor = 0.25});
  EXPECT_EQ(number_of(server), -2.125);
  server.set_rate_factor(2);
  server.push(0, doubles({1}), {.rate_factor = 0.25});
  EXPECT_EQ(number_of(server), -2.375);
  server.set_parameters(GradientChangeMode::ascent);
  server.push(0, doubles({1}));
  EXPECT_EQ(number_of(server), -1.375);
}

TEST(ParameterServer, LetsNobodyWaitWhereItIsAsynchronous) {
  ParameterServer server(Sgd{.lr = 1}, 2, {.heartbeat = 1ms, .deadline = 0s});
  server.set_model_parameters(doubles({0}));
  for (int i = 0; i < 50; ++i) {
    (void)server.pull(0);
    server.push(0, doubles({1}));
  }
  std::this_thread::sleep_for(3ms);  // longer than the heartbeat, and nobody waits
  server.push(1, doubles({1}));
  EXPECT_TRUE(server.is_there(1));
  EXPECT_EQ(number_of(server), -51);
}

// --- synchronous ---

TEST(ParameterServer, TakesARoundOfEverybodysGradients) {
  ParameterServer server(Sgd{.lr = 1}, 3, synchronous());
  server.set_model_parameters(doubles({0}));
  for (int round = 1; round <= 3; ++round) {
    server.push(1, doubles({1}));
    server.push(0, doubles({2}));
    EXPECT_EQ(server.version(), round - 1);
    server.push(2, doubles({6}));
    EXPECT_EQ(server.version(), round);
    EXPECT_EQ(number_of(server), -3 * round);
    EXPECT_EQ(server.pull(1).version, round);
  }
}

TEST(ParameterServer, WeighsTheMeanOfARound) {
  ParameterServer server(Sgd{.lr = 1}, 3, synchronous());
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({4}), {.weight = 1});
  server.push(1, doubles({0}), {.weight = 3});
  server.push(2, doubles({100}), {.weight = 0, .rate_factor = 7});
  EXPECT_EQ(number_of(server), -1);
  // A round that weighs nothing changes nothing, and is a round.
  for (int worker = 0; worker < 3; ++worker) server.push(worker, doubles({5}), {.weight = 0});
  EXPECT_EQ(number_of(server), -1);
  EXPECT_EQ(server.version(), 1);
  EXPECT_THAT(server.clocks(), ElementsAre(2, 2, 2));
  // The largest of the rates.
  server.push(2, doubles({1}), {.rate_factor = 0.5});
  server.push(1, doubles({1}), {.rate_factor = 2});
  server.push(0, doubles({1}), {.rate_factor = 1});
  EXPECT_EQ(number_of(server), -3);
}

TEST(ParameterServer, WaitsForEverybodyWhereItIsSynchronous) {
  ParameterServerOptions options = synchronous();
  options.deadline = 20ms;
  ParameterServer server(Sgd{.lr = 1}, 3, options);
  server.set_model_parameters(doubles({0}));
  (void)server.pull(0);
  server.push(0, doubles({3}));
  try {
    (void)server.pull(0);
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.kind(), FailureKind::late);
    EXPECT_THAT(error.ranks(), ElementsAre(Rank{1}, Rank{2}));
    EXPECT_STREQ(error.what(), "worker 0 has waited for the gradients of worker 1, 2, for 20 ms");
  }
  EXPECT_THAT(error_of([&] { server.push(0, doubles({9})); }), HasSubstr("worker 0 has waited"));
  server.push(1, doubles({3}));
  server.push(2, doubles({3}));
  EXPECT_EQ(numbers_of(*server.pull(0).parameters)[0], -3);
}

// What a loop without any server does in the same steps: the tree over workers, with each its share.
template <Element T>
T tree_sum(const std::vector<T>& values, std::size_t first, std::size_t count) {
  if (count == 1) return values[first];
  std::size_t left = 1;
  while (left * 2 < count) left *= 2;
  return tree_sum(values, first, left) + tree_sum(values, first + left, count - left);
}

template <Element T>
void is_a_plain_loop_to_the_bit() {
  constexpr std::size_t kLength = 5000;
  constexpr int kRounds = 6;
  for (const int workers : {1, 2, 3, 5, 8}) {
    for (const bool weighted : {false, true}) {
      SCOPED_TRACE("workers " + std::to_string(workers) + (weighted ? ", weighted" : ""));
      const auto gradient = [](int worker, int round) {
        RandomStream draws({static_cast<std::uint64_t>(worker), static_cast<std::uint64_t>(round)});
        std::vector<T> values(kLength);
        for (T& value : values) value = static_cast<T>(draws.normal());
        return values;
      };
      const auto weight = [&](int worker) { return weighted ? 1.0 + worker * 0.7 : 32.0; };
      const Adam rule{.lr = 0.01};
      ParameterSet loop = one_array(gradient(99, 0));
      const std::unique_ptr<UpdateRule> its_rule = make_update_rule(rule);
      its_rule->prepare(loop);
      double total = 0;
      const double most = weight(workers - 1);
      for (int worker = 0; worker < workers; ++worker) total += weight(worker) / most;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::vector<T>> gradients;
        for (int worker = 0; worker < workers; ++worker) gradients.push_back(gradient(worker, round));
        std::vector<T> sum(kLength);
        for (std::size_t i = 0; i < kLength; ++i) {
          std::vector<T> values;
          for (int worker = 0; worker < workers; ++worker)
            values.push_back(gradients[static_cast<std::size_t>(worker)][i] * static_cast<T>(weight(worker) / most));
          sum[i] = tree_sum(values, 0, values.size());
        }
        its_rule->apply(loop, one_array(sum), {.gradient_scale = 1 / total});
      }

      ParameterServer server(rule, workers, synchronous());
      server.set_model_parameters(one_array(gradient(99, 0)));
      std::vector<std::jthread> threads;
      for (int worker = 0; worker < workers; ++worker) {
        threads.emplace_back([&, worker] {
          for (int round = 0; round < kRounds; ++round) {
            const ModelSnapshot now = server.pull(worker);
            EXPECT_EQ(now.version, round);
            server.push(worker, one_array(gradient(worker, round)), {.base = now, .weight = weight(worker)});
          }
        });
      }
      threads.clear();
      EXPECT_TRUE(server.get_model_parameters() == loop);
      EXPECT_THAT(server.staleness(), ElementsAre(Pair(0, workers * kRounds)));
    }
  }
}

TEST(ParameterServer, IsAPlainLoopToTheBitWhereItIsSynchronous) {
  is_a_plain_loop_to_the_bit<float>();
  is_a_plain_loop_to_the_bit<double>();
}

TEST(ParameterServer, RefusesIntegersWhereItTakesMeans) {
  struct Ignoring : UpdateRule {
    void apply(ParameterSet&, const ParameterSet&, const UpdateStep&) override {}
  };
  ParameterServer server(std::make_unique<Ignoring>(), 2, synchronous());
  EXPECT_EQ(usage_error([&] { server.set_model_parameters(one_array<std::int64_t>({1})); }),
            "\"weight\" is int64, which has no mean: a synchronous server has floating types");
  ParameterServer(std::make_unique<Ignoring>(), 2).set_model_parameters(one_array<std::int64_t>({1}));
}

// --- bounded staleness ---

TEST(ParameterServer, LetsAWorkerBeSoManyClocksAhead) {
  for (const std::int64_t s : {0, 1, 2, 5}) {
    ParameterServerOptions options = bounded(s);
    options.deadline = 5ms;
    ParameterServer server(Sgd{.lr = 1}, 3, options);
    server.set_model_parameters(doubles({0}));
    for (int i = 0; i < s + 1; ++i) {
      (void)server.pull(0);
      server.push(0, doubles({1}));
    }
    server.push(1, doubles({1}));
    EXPECT_EQ(error_of([&] { (void)server.pull(0); }),
              "worker 0 has waited for worker 2, which is more than " + std::to_string(s) + " clocks behind, for 5 ms");
    (void)server.pull(2);  // the slowest never waits
    server.push(2, doubles({1}));
    EXPECT_EQ(numbers_of(*server.pull(0).parameters)[0], -(s + 3));
    EXPECT_THAT(server.clocks(), ElementsAre(s + 1, 1, 1));
  }
}

TEST(ParameterServer, HoldsBackAWorkerThatOnlyPushes) {
  for (const std::int64_t s : {0, 1, 4}) {
    ParameterServerOptions options = bounded(s);
    options.deadline = 5ms;
    ParameterServer server(Sgd{.lr = 1}, 2, options);
    server.set_model_parameters(doubles({0}));
    for (int i = 0; i < s + 1; ++i) server.push(0, doubles({1}));
    EXPECT_EQ(error_of([&] { server.push(0, doubles({1})); }),
              "worker 0 has waited for worker 1, which is more than " + std::to_string(s) + " clocks behind, for 5 ms");
    EXPECT_THAT(server.clocks(), ElementsAre(s + 1, 0));
    EXPECT_EQ(number_of(server), -(s + 1));
    server.push(1, doubles({1}));
    server.push(0, doubles({1}));
    EXPECT_EQ(number_of(server), -(s + 3));
  }
}

TEST(ParameterServer, WakesWhoWaitsForTheSlowest) {
  ParameterServer server(Sgd{.lr = 1}, 2, bounded(0));
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({1}));
  auto waits = std::async(std::launch::async, [&] { return server.pull(0).version; });
  server.push(1, doubles({1}));
  EXPECT_EQ(waits.get(), 2);
}

// --- who is there ---

TEST(ParameterServer, WaitsForNobodyWhoHasLeft) {
  for (const ParameterServerOptions& options : {synchronous(), bounded(0)}) {
    ParameterServer server(Sgd{.lr = 1}, 3, options);
    server.set_model_parameters(doubles({0}));
    server.push(0, doubles({2}));
    auto waits = std::async(std::launch::async, [&] { return server.pull(0); });
    server.leave(1);
    server.push(2, doubles({4}));
    EXPECT_EQ(numbers_of(*waits.get().parameters)[0], options.consistency == Consistency::synchronous ? -3 : -6);
    EXPECT_FALSE(server.is_there(1));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { (void)server.pull(1); }, [&] { server.push(1, doubles({1})); }, [&] { server.beat(1); }})
      EXPECT_EQ(usage_error(call), "worker 1 has left: expected join() first");
    server.leave(1);
    // The last that others wait for.
    server.push(0, doubles({2}));
    server.leave(2);
    (void)server.pull(0);
  }
}

TEST(ParameterServer, AppliesWhatWasPushedBeforeALeave) {
  ParameterServer server(Sgd{.lr = 1}, 2, synchronous());
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({2}));
  server.leave(0);
  EXPECT_EQ(server.version(), 0);
  server.push(1, doubles({4}));
  EXPECT_EQ(number_of(server), -3);
  server.push(1, doubles({4}));
  EXPECT_EQ(number_of(server), -7);
  // Nobody else is there.
  server.join(0);
  server.push(0, doubles({2}));
  server.leave(0);
  server.leave(1);
  EXPECT_EQ(number_of(server), -9);
}

TEST(ParameterServer, TellsAWorkerThatLeavesWhileItWaits) {
  ParameterServer server(Sgd{.lr = 1}, 2, synchronous());
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({1}));
  auto waits = std::async(std::launch::async, [&] { return usage_error([&] { (void)server.pull(0); }); });
  server.leave(0);
  EXPECT_EQ(waits.get(), "worker 0 has left: expected join() first");
}

TEST(ParameterServer, TakesBackAWorkerAtTheSlowestsClock) {
  ParameterServer server(Sgd{.lr = 1}, 3, bounded(1));
  server.set_model_parameters(doubles({0}));
  server.leave(2);
  for (int i = 0; i < 4; ++i) {
    server.push(0, doubles({1}));
    server.push(1, doubles({1}));
  }
  server.push(0, doubles({1}));
  server.join(2);
  server.join(2);  // it is there
  EXPECT_THAT(server.clocks(), ElementsAre(5, 4, 4));
  (void)server.pull(2);
  server.push(2, doubles({1}));
  EXPECT_THAT(server.clocks(), ElementsAre(5, 4, 5));
  // Where nobody is there, it has its own.
  for (int worker = 0; worker < 3; ++worker) server.leave(worker);
  server.join(1);
  EXPECT_THAT(server.clocks(), ElementsAre(5, 4, 5));
}

TEST(ParameterServer, IsWaitedForInTheRoundInWhichItComesBack) {
  ParameterServerOptions options = synchronous();
  options.deadline = 5ms;
  ParameterServer server(Sgd{.lr = 1}, 2, options);
  server.set_model_parameters(doubles({0}));
  server.leave(1);
  server.push(0, doubles({1}));
  server.join(1);
  server.push(0, doubles({1}));
  EXPECT_THAT(error_of([&] { (void)server.pull(0); }), HasSubstr("the gradients of worker 1"));
  server.push(1, doubles({3}));
  EXPECT_EQ(number_of(server), -3);
}

TEST(ParameterServer, LosesAWorkerThatIsSilent) {
  for (const ParameterServerOptions& base : {synchronous(), bounded(0)}) {
    ParameterServerOptions options = base;
    options.heartbeat = 10ms;
    ParameterServer server(Sgd{.lr = 1}, 3, options);
    server.set_model_parameters(doubles({0}));
    server.push(0, doubles({3}));
    server.push(1, doubles({3}));
    const auto before = std::chrono::steady_clock::now();
    (void)server.pull(0);  // the deadline is ten minutes
    EXPECT_LT(std::chrono::steady_clock::now() - before, 1min);
    EXPECT_FALSE(server.is_there(2));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { (void)server.pull(2); }, [&] { server.push(2, doubles({1})); }, [&] { server.beat(2); }})
      EXPECT_EQ(error_of(call),
                "worker 2 was silent for longer than the heartbeat of 10 ms while others waited for it, and has left: "
                "join() brings it back");
    server.join(2);
    EXPECT_TRUE(server.is_there(2));
    (void)server.pull(2);
    server.leave(2);
    EXPECT_EQ(usage_error([&] { server.beat(2); }), "worker 2 has left: expected join() first");
  }
}

TEST(ParameterServer, KeepsAWorkerThatIsWithinACall) {
  // Its gradients are being applied, and that takes its time.
  struct Slow : UpdateRule {
    void apply(ParameterSet&, const ParameterSet& gradients, const UpdateStep&) override {
      if (gradients[0].values<double>()[0] != 7) return;
      begun.count_down();
      goes_on.wait();
    }
    std::latch begun{1};
    std::latch goes_on{1};
  };
  auto rule = std::make_unique<Slow>();
  Slow& slow = *rule;
  ParameterServerOptions options = bounded(0);
  options.heartbeat = 1ms;
  options.deadline = 50ms;
  ParameterServer server(std::move(rule), 2, options);
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({1}));
  std::jthread other([&] { server.push(1, doubles({7})); });
  slow.begun.wait();
  EXPECT_THAT(error_of([&] { (void)server.pull(0); }), HasSubstr("worker 0 has waited for worker 1"));
  EXPECT_TRUE(server.is_there(1));
  slow.goes_on.count_down();
  other.join();
  (void)server.pull(0);
}

TEST(ParameterServer, KeepsAWorkerThatGivesSignsOfLife) {
  ParameterServerOptions options = synchronous();
  options.heartbeat = 10s;
  options.deadline = 10ms;
  ParameterServer server(Sgd{.lr = 1}, 2, options);
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({1}));
  for (int i = 0; i < 3; ++i) {
    server.beat(1);
    EXPECT_THAT(error_of([&] { (void)server.pull(0); }), HasSubstr("the gradients of worker 1"));
    EXPECT_TRUE(server.is_there(1));
  }
  server.push(1, doubles({1}));
  (void)server.pull(0);
}

// --- misuse ---

TEST(ParameterServer, RefusesWhatCannotBe) {
  const auto refused = [](int workers, const ParameterServerOptions& options) {
    return usage_error([&] { ParameterServer(Sgd{}, workers, options); });
  };
  EXPECT_EQ(refused(0, {}), "expected at least one worker, found 0");
  EXPECT_EQ(refused(1, {.consistency = Consistency::lock_free}),
            "consistency: parameters that are lock_free have no server: SharedParameters");
  EXPECT_EQ(refused(1, {.max_staleness = -1}), "max_staleness: expected a number from 0 on, found -1");
  EXPECT_EQ(refused(1, {.heartbeat = 0s}), "heartbeat: expected a time above 0, found 0 s");
  EXPECT_EQ(refused(1, {.staleness = {.rate_exponent = -1}}), "rate_exponent: expected a number from 0 on, found -1");
  EXPECT_EQ(usage_error([] { ParameterServer(std::unique_ptr<UpdateRule>(), 1); }),
            "expected a rule by which gradients change parameters, found none");
  EXPECT_EQ(usage_error([] { ParameterServer(Sgd{.lr = -1}, 1); }), "sgd: lr: expected a number from 0 on, found -1");
  ParameterServer server(Sgd{}, 2);
  EXPECT_EQ(usage_error([&] { (void)server.pull(0); }), "there are no parameters yet");
  EXPECT_EQ(usage_error([&] { server.push(0, doubles({1})); }),
            "there are no parameters yet that gradients could change");
  EXPECT_EQ(usage_error([&] { server.set_rate_factor(kNan); }), "rate_factor: expected a number from 0 on, found nan");
  server.set_model_parameters(doubles({1}));
  for (const int worker : {-1, 2}) {
    const std::string what = "there is no worker " + std::to_string(worker) + ": expected 0 to 1";
    EXPECT_EQ(usage_error([&] { (void)server.pull(worker); }), what);
    EXPECT_EQ(usage_error([&] { server.push(worker, doubles({1})); }), what);
    EXPECT_EQ(usage_error([&] { server.beat(worker); }), what);
    EXPECT_EQ(usage_error([&] { server.leave(worker); }), what);
    EXPECT_EQ(usage_error([&] { server.join(worker); }), what);
    EXPECT_EQ(usage_error([&] { (void)server.is_there(worker); }), what);
  }
}

TEST(ParameterServer, IsNotTouchedByWhatItRefuses) {
  for (const ParameterServerOptions& options : {ParameterServerOptions{}, synchronous(), bounded(0)}) {
    ParameterServer server(Sgd{.lr = 1}, 2, options);
    server.set_model_parameters(doubles({0, 0}));
    const auto refused = [&](ParameterSet set, const GradientOrigin& origin = {}) {
      return usage_error([&] { server.push(0, std::move(set), origin); });
    };
    EXPECT_EQ(refused(doubles({1, kNan})), "\"weight\" has gradients that are infinite or not a number");
    EXPECT_THAT(refused(doubles({1, 1}, "bias")), HasSubstr("these gradients are not of this model"));
    EXPECT_THAT(refused(doubles({1})), HasSubstr("expected float64 [2]"));
    EXPECT_THAT(refused(one_array<float>({1, 1})), HasSubstr("expected float64 [2]"));
    EXPECT_EQ(refused(doubles({1, 1}), {.weight = kNan}), "expected a weight that is finite, found nan");
    EXPECT_EQ(refused(doubles({1, 1}), {.rate_factor = -1}), "rate_factor: expected a number from 0 on, found -1");
    if (options.consistency == Consistency::synchronous) {
      EXPECT_EQ(refused(doubles({1, 1}), {.weight = -1}), "expected a weight from 0 on, found -1");
    }
    EXPECT_EQ(usage_error([&] { server.push(0, std::shared_ptr<const ParameterSet>()); }),
              "expected gradients, found none");
    EXPECT_THAT(server.clocks(), ElementsAre(0, 0));
    EXPECT_EQ(server.version(), 0);
    server.push(0, doubles({2, 4}));
    server.push(1, doubles({2, 4}));
    const double times = options.consistency == Consistency::synchronous ? -1 : -2;
    EXPECT_THAT(numbers_of(server.get_model_parameters()), ElementsAre(2 * times, 4 * times));
  }
}

struct ThrowsOfSevens : UpdateRule {
  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    const double gradient = gradients[0].values<double>()[0];
    parameters[0].values<double>()[0] -= gradient * step.gradient_scale;
    if (gradient * step.gradient_scale == 7) throw std::runtime_error("a seven");
  }
};

TEST(ParameterServer, TellsWhoPushedWhatTheRuleThrows) {
  for (const ParameterServerOptions& options : {ParameterServerOptions{}, bounded(3)}) {
    ParameterServer server(std::make_unique<ThrowsOfSevens>(), 2, options);
    server.set_model_parameters(doubles({0}));
    EXPECT_THROW(server.push(0, doubles({7})), std::runtime_error);
    EXPECT_EQ(number_of(server), 0);
    EXPECT_THAT(server.clocks(), ElementsAre(0, 0));
    server.push(1, doubles({2}));
    server.push(0, doubles({1}));
    EXPECT_EQ(number_of(server), -3);
  }
}

TEST(ParameterServer, TellsEverybodyWhatARoundFailedWith) {
  ParameterServer server(std::make_unique<ThrowsOfSevens>(), 3, synchronous());
  server.set_model_parameters(doubles({0}));
  server.push(0, doubles({7}));
  server.push(1, doubles({0}));
  EXPECT_THROW(server.push(2, doubles({14})), std::runtime_error);
  EXPECT_THROW((void)server.pull(0), std::runtime_error);
  EXPECT_THROW(server.push(1, doubles({1})), std::runtime_error);
  EXPECT_EQ(number_of(server), 0);
  EXPECT_EQ(server.version(), 0);
  for (int worker = 0; worker < 3; ++worker) {
    (void)server.pull(worker);
    server.push(worker, doubles({2}));
  }
  EXPECT_EQ(number_of(server), -2);
}

// --- staleness ---

TEST(ParameterServer, CountsStaleness) {
  ParameterServer server(Sgd{.lr = 1}, 2);
  server.set_model_parameters(doubles({0}));
  const ModelSnapshot first = server.pull(1);
  for (int i = 0; i < 3; ++i) server.push(0, doubles({1}), {.base = server.pull(0)});
  server.push(1, doubles({1}), {.base = first});
  server.push(1, doubles({1}));
  EXPECT_THAT(server.staleness(), ElementsAre(Pair(0, 4), Pair(3, 1)));
}

TEST(ParameterServer, ScalesTheRateByStaleness) {
  ParameterServer server(Sgd{.lr = 1}, 1, {.staleness = {.rate_exponent = 1}});
  server.set_model_parameters(doubles({0}));
  const ModelSnapshot first = server.pull(0);
  for (const double expected : {-6.0, -9.0, -11.0}) {
    server.push(0, doubles({6}), {.base = first});
    EXPECT_EQ(number_of(server), expected);
  }
}

TEST(ParameterServer, CompensatesADelay) {
  for (const GradientChangeMode mode : {GradientChangeMode::descent, GradientChangeMode::ascent}) {
    const double direction = mode == GradientChangeMode::descent ? 1 : -1;
    ParameterServer server(Sgd{.lr = 1}, 1, {.mode = mode, .staleness = {.delay_compensation = 0.5}});
    server.set_model_parameters(doubles({0}));
    const ModelSnapshot first = server.pull(0);
    server.push(0, doubles({2}), {.base = first});
    EXPECT_EQ(number_of(server), -2 * direction);
    // Of -f a gradient of -3 descends as one of 3 of f ascends: 3 + 0.5 * 9 * -2 = -6, and -(-3 + 0.5 * 9 * 2) = -6.
    server.push(0, doubles({3}), {.base = first});
    EXPECT_EQ(number_of(server), -2 * direction + 6 * direction);
  }
}

// --- checkpoints ---

TEST(ParameterServer, GoesOnFromACheckpointToTheBit) {
  for (const ParameterServerOptions& options : {ParameterServerOptions{}, synchronous(), bounded(2)}) {
    for (const OptimizerRule& rule :
         std::vector<OptimizerRule>{Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .momentum = 0.9}, Adam{}, Adagrad{}}) {
      RandomStream draws({3});
      const auto step = [&](std::vector<ParameterServer*> servers) {
        for (int worker = 0; worker < 2; ++worker) {
          const ParameterSet gradients = doubles({draws.normal(), draws.normal()});
          for (ParameterServer* server : servers) server->push(worker, gradients);
        }
      };
      ParameterServer server(rule, 2, options);
      server.set_model_parameters(doubles({1, 2}));
      for (int i = 0; i < 5; ++i) step({&server});
      server.set_rate_factor(0.3);
      server.set_parameters(GradientChangeMode::ascent);
      server.push(0, doubles({1, 1}));  // synchronous: of a round that is not complete
      ParameterSet saved;
      server.save(saved);
      ParameterServer again(rule, 2, options);
      EXPECT_THROW(again.restore(saved), UsageError);
      again.set_model_parameters(doubles({0, 0}));
      again.push(0, doubles({5, 5}));
      again.restore(saved);
      EXPECT_EQ(again.version(), server.version());
      if (options.consistency == Consistency::synchronous) {
        EXPECT_THAT(again.clocks(), ElementsAre(5, 5));
        again.push(0, doubles({1, 1}));
      }
      EXPECT_EQ(again.clocks(), server.clocks());
      server.push(1, doubles({2, 2}));
      again.push(1, doubles({2, 2}));
      for (int i = 0; i < 5; ++i) step({&server, &again});
      EXPECT_TRUE(again.get_model_parameters() == server.get_model_parameters());
      EXPECT_EQ(again.version(), server.version());
      // On more workers.
      ParameterServer more(rule, 3, options);
      more.set_model_parameters(doubles({0, 0}));
      more.restore(saved);
      EXPECT_THAT(more.clocks(), ElementsAre(0, 0, 0));
    }
  }
}

// Whoever goes on has all workers, at a clock at which nobody waits for what somebody who was lost would have done.
TEST(ParameterServer, GoesOnWithoutWaitingForWhatTheLostHaveNotDone) {
  ParameterServer server(Sgd{.lr = 1}, 3, bounded(2));
  server.set_model_parameters(doubles({0}));
  server.push(1, doubles({1}));
  server.leave(1);
  for (int i = 0; i < 10; ++i) {
    for (const int worker : {0, 2}) server.push(worker, doubles({1}));
  }
  server.push(0, doubles({1}));
  ParameterSet saved;
  server.save(saved);
  EXPECT_THAT(server.clocks(), ElementsAre(11, 1, 10));
  ParameterServer again(Sgd{.lr = 1}, 3, bounded(2));
  again.set_model_parameters(doubles({0}));
  again.restore(saved);
  EXPECT_THAT(again.clocks(), ElementsAre(11, 10, 10));
  // Where nobody is there who could be waited for, clocks are what they are.
  for (const int worker : {0, 2}) server.leave(worker);
  saved = {};
  server.save(saved);
  again.restore(saved);
  EXPECT_THAT(again.clocks(), ElementsAre(4, 1, 4));
}

TEST(ParameterServer, BringsWorkersTogetherThatAnotherConsistencyLetGoFarther) {
  ParameterServer server(Sgd{.lr = 1}, 2);
  server.set_model_parameters(doubles({0}));
  for (int i = 0; i < 20; ++i) server.push(0, doubles({1}));
  server.push(1, doubles({1}));
  ParameterSet saved;
  server.save(saved);
  ParameterServer unbounded(Sgd{.lr = 1}, 2);
  ParameterServer close(Sgd{.lr = 1}, 2, bounded(3));
  ParameterServer wide(Sgd{.lr = 1}, 2, bounded(std::numeric_limits<std::int64_t>::max()));
  for (ParameterServer* again : {&unbounded, &close, &wide}) {
    again->set_model_parameters(doubles({0}));
    again->restore(saved);
  }
  EXPECT_THAT(unbounded.clocks(), ElementsAre(20, 1));
  EXPECT_THAT(close.clocks(), ElementsAre(5, 1));  // as far as a push may bring it
  EXPECT_THAT(wide.clocks(), ElementsAre(20, 1));
  close.push(1, doubles({1}));
  EXPECT_EQ(close.pull(0).version, 22);
}

TEST(ParameterServer, IsNotTouchedByARoundWhoseSumIsNotFinite) {
  ParameterServer server(Sgd{.lr = 1e-30}, 2, synchronous());
  server.set_model_parameters(one_array<float>({1}));
  server.push(0, one_array<float>({3e38f}));
  EXPECT_THAT(error_of([&] { server.push(1, one_array<float>({3e38f})); }), HasSubstr("add up to more"));
  EXPECT_THAT(error_of([&] { (void)server.pull(0); }), HasSubstr("add up to more"));
  EXPECT_EQ(server.version(), 0);
  EXPECT_EQ(server.get_model_parameters()[0].values<float>()[0], 1);
}

TEST(ParameterServer, IsNotTouchedByACheckpointOfSomethingElse) {
  ParameterServer server(Adam{}, 2);
  server.set_model_parameters(doubles({1, 2}));
  server.push(0, doubles({1, 1}));
  ParameterSet before;
  server.save(before);
  const auto saved_by = [](const OptimizerRule& rule, const ParameterSet& model) {
    ParameterServer other(rule, 2);
    other.set_model_parameters(model);
    other.push(0, model);
    ParameterSet saved;
    other.save(saved);
    return saved;
  };
  for (const ParameterSet& saved : {ParameterSet(), saved_by(Sgd{}, doubles({1, 2})), saved_by(Adam{}, doubles({1})),
                                    saved_by(Adam{}, doubles({1, 2}, "bias"))}) {
    EXPECT_THROW(server.restore(saved), UsageError);
    ParameterSet after;
    server.save(after);
    EXPECT_TRUE(after == before);
  }
}

}  // namespace
}  // namespace tutti
