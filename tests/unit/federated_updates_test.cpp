// What becomes of the updates of a round: those that come late, and those that are no good.
#include <tutti/coordinate/federated_rounds.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <support/scripted_clients.hpp>
#include <support/usage_error.hpp>
#include <tutti/coordinate/simulated_clients.hpp>

namespace tutti {
namespace {

using strategy::Buffered;
using strategy::Discount;
using strategy::Federated;
using strategy::Synchronous;
using testing::clients_of;
using testing::for_clients;
using testing::number_in;
using testing::one_number;
using testing::Script;
using testing::usage_error;

// --- updates that come late ---

struct LateCase {
  strategy::LateUpdates late;
  std::int64_t taken;
  std::int64_t dropped;
};

TEST(FederatedRounds, DropOrDiscountWhatComesLate) {
  for (const LateCase& its : {LateCase{strategy::Drop{}, 0, 1}, LateCase{Discount{.factor = 0.5}, 1, 0}}) {
    // Client 0 is fast and always moves by +1; client 1 needs one and a half rounds for its +10.
    Script script;
    script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
      return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 1.0F : 10.0F)), .rows = 1};
    };
    SimulatedClientsOptions options = clients_of(script, 2);
    options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1.5}};
    SimulatedClients clients(std::move(options));
    Federated strategy = for_clients(2);
    strategy.round = Synchronous{.replies = 1, .late = its.late};
    FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
    RoundReport report = rounds.run();
    EXPECT_EQ(report.updates, 1);
    EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
    report = rounds.run();  // client 1 answers at 1.5, client 0 at 2: (1 * 1 + 10 * 0.5) / 1.5 = 4
    EXPECT_EQ(report.late, its.taken);
    EXPECT_EQ(report.dropped, its.dropped);
    EXPECT_FLOAT_EQ(number_in(rounds.parameters()), its.taken == 1 ? 5.0F : 2.0F);
  }
}

TEST(FederatedRounds, DiscountTheChangeWhereRulesCountEachClientAsOne) {
  // Two are in time with +4 and +8; the third comes in the second round with half of its +10.
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + (client == 2   ? 10.0F
                                                                  : client == 1 ? 8.0F
                                                                                : 4.0F)),
                     .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 3);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 1.5}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(3);
  strategy.aggregation = strategy::Median{};
  strategy.round = Synchronous{.replies = 2, .late = Discount{.factor = 0.5}};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  (void)rounds.run();
  EXPECT_EQ(number_in(rounds.parameters()), 6.0F);
  EXPECT_EQ(rounds.run().late, 1);
  EXPECT_EQ(number_in(rounds.parameters()), 11.0F);
}

TEST(FederatedRounds, KeepLateUpdatesWhereARoundIsRepeated) {
  // Client 0 is late for round 1, and comes in while round 2 fails for the first time.
  std::atomic<int> failures = 0;
  Script script;
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions& instructions) {
    if (client != 0 && instructions.round == 2 && failures < 2) {
      ++failures;
      throw std::runtime_error("not now");
    }
    return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 6.0F : 1.0F)), .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 3, 1);
  options.behaviour = {{.fit_seconds = 1.5}, {.fit_seconds = 1}, {.fit_seconds = 1}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(3);
  strategy.round = Synchronous{.replies = 2, .late = Discount{.factor = 0.5}};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  EXPECT_EQ(rounds.run().updates, 2);
  EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
  const RoundReport second = rounds.run();
  EXPECT_EQ(second.repeats, 1);
  EXPECT_EQ(second.late, 1);
  EXPECT_EQ(second.updates, 3);
  EXPECT_FLOAT_EQ(number_in(rounds.parameters()), 1 + (1 + 1 + 0.5F * 6) / 2.5F);
}

TEST(FederatedRounds, CountWhatComesInARepetitionOfTheirRoundInFull) {
  // The last two never make the deadline, and are of the same model when they come.
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 4);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 5}, {.fit_seconds = 9}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(4);
  strategy.round = Synchronous{.replies = 3, .deadline = 2, .late = Discount{}};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport first = rounds.run();
  EXPECT_EQ(first.updates, 3);
  EXPECT_EQ(first.late, 0);
  EXPECT_EQ(first.asked, 4);
  EXPECT_EQ(first.repeats, 2);
  EXPECT_EQ(first.seconds, 5.0);
  EXPECT_EQ(number_in(rounds.parameters()), 1.0F);  // 0, 1 and 2
}

TEST(FederatedRounds, TakeOneUpdateOfAClientHoweverOftenTheyRepeat) {
  // Three who often fail, and one who is always late.
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 4);
  options.behaviour = {{.fit_seconds = 0.1, .failure = 0.6},
                       {.fit_seconds = 0.1, .failure = 0.6},
                       {.fit_seconds = 0.1, .failure = 0.6},
                       {.fit_seconds = 1.5}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(4);
  strategy.round = Synchronous{.replies = 3, .deadline = 1, .late = Discount{}, .max_repeats = 1000};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  for (int round = 0; round < 30; ++round) {
    const RoundReport report = rounds.run();
    EXPECT_LE(report.late, 1);
    EXPECT_LE(report.updates, 4);
  }
}

TEST(FederatedRounds, CountAClientThatWasLateOnceWhereEachCountsAsOne) {
  // Client 0 is late for round 1, and comes in during round 2; when client 1 fails in that, it is asked again.
  Script script;
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions& instructions) {
    if (client == 1 && instructions.round == 2) throw std::runtime_error("not now");
    return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 1000.0F : 1.0F)), .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 3);
  options.behaviour = {{.fit_seconds = 3}, {.fit_seconds = 2}, {.fit_seconds = 2}};
  for (const bool is_mean : {false, true}) {
    SimulatedClients clients(options);
    Federated strategy = for_clients(3);
    if (!is_mean) strategy.aggregation = strategy::Median{};
    strategy.round = Synchronous{.replies = 2, .late = Discount{.factor = 1}};
    FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
    EXPECT_EQ(rounds.run().updates, 2);
    EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
    const RoundReport report = rounds.run();
    EXPECT_EQ(report.repeats, 1);
    EXPECT_EQ(report.updates, is_mean ? 3 : 2);
    EXPECT_EQ(report.late, is_mean ? 1 : 0);
    EXPECT_EQ(report.dropped, is_mean ? 0 : 1);
    EXPECT_FLOAT_EQ(number_in(rounds.parameters()), is_mean ? 668.0F : 501.5F);
  }
}

// Clients of a test that answers for them, in the order it says. Of an answer that was taken nothing is kept here.
class AnsweringPool final : public ClientPool {
 public:
  explicit AnsweringPool(std::int64_t count) : clients_(static_cast<std::size_t>(count)) {}

  const std::vector<ClientInfo>& clients() const override { return clients_; }
  bool is_free(std::int64_t client) const override { return !tasks_.contains(client); }
  Compression compression() const override { return NoCompression{}; }
  std::uint64_t ask(ClientTask task) override {
    tasks_.emplace(task.client, std::move(task));
    return 0;
  }
  std::optional<ClientReply> next(double) override {
    if (order.empty()) return std::nullopt;
    const std::int64_t client = order.front();
    order.pop_front();
    before_answer(client);
    ClientReply reply{.task = std::move(tasks_.at(client)), .values = one_number(1), .rows = 1};
    tasks_.erase(client);
    if (misread) misread(reply);
    return reply;
  }
  double now() const override { return 0; }
  std::weak_ptr<const ParameterSet> model_of(std::int64_t client) const { return tasks_.at(client).parameters; }

  std::deque<std::int64_t> order = {};  // of the clients that answer
  std::function<void(std::int64_t client)> before_answer = [](std::int64_t) {};
  std::function<void(ClientReply& reply)> misread = {};

 private:
  std::vector<ClientInfo> clients_;
  std::map<std::int64_t, ClientTask> tasks_;
};

TEST(FederatedRounds, HoldLateUpdatesOnlyWhereTheRuleComparesThem) {
  for (const bool is_a_mean : {true, false}) {
    AnsweringPool pool(9);
    Federated strategy = for_clients(9);
    if (!is_a_mean) strategy.aggregation = strategy::Median{};
    strategy.round = Synchronous{.replies = 2, .late = Discount{}};
    FederatedRounds rounds(one_number(0), pool, {.strategy = strategy});
    pool.order = {0, 1};
    (void)rounds.run();
    // The others answer late. Whoever is held has with it the model that it was asked with: here the first.
    const std::weak_ptr<const ParameterSet> first_model = pool.model_of(2);
    long held = 0;
    pool.before_answer = [&](std::int64_t client) {
      if (client == 1) held = first_model.use_count();
    };
    pool.order = {2, 3, 4, 5, 6, 7, 8, 0, 1};
    const RoundReport report = rounds.run();
    EXPECT_EQ(report.late, 7);
    EXPECT_EQ(report.updates, 9);
    EXPECT_EQ(held, is_a_mean ? 0 : 7);
  }
}

// --- updates that are no good ---

TEST(FederatedRounds, EndWherePoolsAnswerForWhatIsNotThere) {
  const auto failure_of = [](const std::function<void(ClientReply&)>& misread) {
    AnsweringPool pool(3);
    pool.order = {0, 1, 2};
    pool.misread = misread;
    Federated strategy = for_clients(3);
    strategy.round = Synchronous{.max_repeats = 0};
    FederatedRounds rounds(one_number(0), pool, {.strategy = strategy});
    try {
      (void)rounds.run();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(failure_of([](ClientReply& reply) { reply.task.client = 99; }),
            "the pool has an answer of client 99, and there are 3");
  EXPECT_EQ(failure_of([](ClientReply& reply) { reply.task.client = -1; }),
            "the pool has an answer of client -1, and there are 3");
  EXPECT_EQ(failure_of([](ClientReply& reply) { reply.task.version = 7; }),
            "the pool has an answer of client 0 to version 7 of the model, which is at 0");
  // A model of other names is of another run.
  EXPECT_THAT(failure_of([](ClientReply& reply) {
                ParameterSet other;
                other.add({.name = "y", .shape = {1}});
                reply.task.parameters = std::make_shared<const ParameterSet>(other);
              }),
              ::testing::HasSubstr("its update is of a model of other names, shapes or types"));
}

TEST(FederatedRounds, RefuseBadUpdatesAndGoOn) {
  struct Bad {
    FitResult result;
    std::string why;
  };
  ParameterSet two = one_number(1);
  two.add({.name = "y", .shape = {1}});
  ParameterSet long_one;
  long_one.add({.name = "x", .shape = {2}});
  const std::vector<Bad> cases = {
      {{.parameters = one_number(NAN), .rows = 1}, "\"x\" has numbers that are infinite or not a number"},
      {{.parameters = one_number(INFINITY), .rows = 1}, "\"x\" has numbers that are infinite or not a number"},
      {{.parameters = {}, .rows = 1}, "its update does not fit"},
      {{.parameters = two, .rows = 1}, "its update does not fit"},
      {{.parameters = long_one, .rows = 1}, "its update does not fit"},
      {{.parameters = one_number(1), .rows = 0}, "it says that it has 0 rows"},
      {{.parameters = one_number(1), .rows = -3}, "it says that it has -3 rows"},
      {{.parameters = one_number(1), .rows = 1, .loss = NAN}, "its loss is nan"},
      {{.parameters = one_number(20), .rows = 1}, "its change has a length of 20, above 10"},
  };
  for (const Compression& compression : std::vector<Compression>{NoCompression{}, Float16{}}) {
    for (const Bad& bad : cases) {
      Script script;
      script.fit = [&](std::int64_t client, const ParameterSet&, const FitInstructions&) {
        return client == 1 ? bad.result : FitResult{.parameters = one_number(5), .rows = 2};
      };
      SimulatedClientsOptions options = clients_of(script, 3);
      options.compression = compression;
      SimulatedClients clients(std::move(options));
      Federated strategy = for_clients(3);
      strategy.max_update_norm = 10;
      strategy.round = Synchronous{.replies = 2};
      FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
      const RoundReport report = rounds.run();
      EXPECT_EQ(report.refused, 1) << bad.why;
      ASSERT_EQ(report.problems.size(), 1U);
      EXPECT_TRUE(report.problems[0].starts_with("client 1 was refused: " + bad.why)) << report.problems[0];
      EXPECT_EQ(number_in(rounds.parameters()), 5.0F);
    }
  }
}

// A number that is trained, and a mask that is part of the model.
ParameterSet with_mask(float value, const std::vector<float>& mask = {0, -INFINITY, NAN}) {
  ParameterSet set = one_number(value);
  set.add("mask", {std::ssize(mask)}, mask);
  return set;
}

TEST(FederatedRounds, LeaveNumbersAsTheyAreThatWereNeverFinite) {
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    ParameterSet trained = given;
    trained.at("x").values<float>()[0] += client % 2 == 0 ? 1.0F : 3.0F;
    return FitResult{.parameters = std::move(trained), .rows = 1};
  };
  const ParameterSet first = with_mask(0);
  for (const strategy::FederatedAggregation& rule : std::vector<strategy::FederatedAggregation>{
           strategy::FedAvg{}, strategy::FedAvgM{}, strategy::FedAdam{}, strategy::Median{}, strategy::TrimmedMean{},
           strategy::Krum{.byzantine = 1}, strategy::Bulyan{.byzantine = 1}, strategy::NormClipping{.max_norm = 2}}) {
    for (const Compression& compression : std::vector<Compression>{NoCompression{}, Float16{}, TopK{.fraction = 0.5}}) {
      for (const bool is_mask_trained : {false, true}) {
        SimulatedClientsOptions options = clients_of(script, 8);
        options.compression = compression;
        options.is_trained = {true, is_mask_trained};
        for (int i = 0; i < 8; ++i) options.behaviour.push_back({.fit_seconds = 1.0 + i, .update_factor = 2});
        SimulatedClients clients(options);
        Federated strategy = for_clients(8);
        strategy.aggregation = rule;
        strategy.max_update_norm = 100;
        strategy.round = Synchronous{.replies = 7, .late = Discount{}};
        FederatedRounds rounds(first, clients, {.strategy = strategy, .is_trained = options.is_trained});
        for (int i = 0; i < 3; ++i) EXPECT_EQ(rounds.run().refused, 0);
        EXPECT_GT(number_in(rounds.parameters()), 0.0F);
        EXPECT_TRUE(std::ranges::equal(rounds.parameters().at("mask").bytes(), first.at("mask").bytes()));
      }
    }
  }
}

TEST(FederatedRounds, RefuseChangesFromOrToWhatIsNotFinite) {
  for (const Compression& compression : std::vector<Compression>{NoCompression{}, Float16{}}) {
    Script script;
    script.fit = [](std::int64_t client, const ParameterSet&, const FitInstructions&) {
      if (client == 0) return FitResult{.parameters = with_mask(5, {0, 0, NAN}), .rows = 1};
      if (client == 1) return FitResult{.parameters = with_mask(5, {-INFINITY, -INFINITY, NAN}), .rows = 1};
      if (client == 2) return FitResult{.parameters = with_mask(5, {0, -INFINITY, -NAN}), .rows = 1};
      return FitResult{.parameters = with_mask(2), .rows = 1};
    };
    SimulatedClientsOptions options = clients_of(script, 4);
    options.compression = compression;
    options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2}, {.fit_seconds = 3}, {.fit_seconds = 4}};
    SimulatedClients clients(std::move(options));
    Federated strategy = for_clients(4);
    strategy.round = Synchronous{.replies = 1};
    FederatedRounds rounds(with_mask(0), clients, {.strategy = strategy});
    const RoundReport report = rounds.run();
    const std::string not_finite = "numbers that are infinite or not a number";
    EXPECT_EQ(report.problems,
              (std::vector<std::string>{"client 0 was refused: \"mask\" has other numbers where it was given some that "
                                        "are infinite or not a number",
                                        "client 1 was refused: \"mask\" has " + not_finite,
                                        "client 2 was refused: \"mask\" has " + not_finite}));
    EXPECT_EQ(report.astray, 2);
    EXPECT_EQ(number_in(rounds.parameters()), 2.0F);
  }
}

TEST(FederatedRounds, LetClientsKeepWhatWasNeverFinite) {
  // A layer of its own with a mask, which a client has from the beginning, and a number that may go astray.
  struct Keeping final : FederatedClient {
    FitResult fit(const ParameterSet& given, const FitInstructions& instructions) override {
      own.at("x").values<float>()[0] = instructions.round == 2 ? NAN : 10.0F + static_cast<float>(instructions.round);
      return {.parameters = given, .rows = 1};
    }
    ClientEvaluation evaluate(const ParameterSet&) override { return {.rows = 1}; }
    ParameterSet state() const override { return own; }
    void restore(const ParameterSet& state) override { own = state; }
    ParameterSet own = with_mask(0);
  };
  SimulatedClients clients(
      {.clients = std::vector<ClientInfo>(1), .make = [](std::int64_t) { return std::make_unique<Keeping>(); }});
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(1)});
  for (const float kept : {11.0F, 11.0F, 13.0F}) {
    (void)rounds.run();
    EXPECT_EQ(clients.state_of(0).at("state/x").values<float>()[0], kept);
  }
}

TEST(FederatedRounds, RefuseMoreRowsThanTheClientHas) {
  // Of one of the honest ones nobody knows how many it has.
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet&, const FitInstructions&) {
    return FitResult{
        .parameters = one_number(client == 0 ? 1000.0F : 1.0F), .rows = client == 0 ? 1'000'000'000 : 5, .trained = 15};
  };
  SimulatedClientsOptions options = clients_of(script, 3);
  options.clients = {{.rows = 5}, {.rows = 0}, {.rows = 5}};
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2}, {.fit_seconds = 3}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(3);
  strategy.round = Synchronous{.replies = 2};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport report = rounds.run();
  EXPECT_EQ(report.refused, 1);
  EXPECT_EQ(report.problems,
            std::vector<std::string>{"client 0 was refused: it says that it has 1000000000 rows, and has 5"});
  EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
}

TEST(FederatedRounds, BearHostileClientsWithRulesThatDo) {
  Script script;  // all honest ones go to 1; 4 of 20 send ten times the opposite
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    const float before = number_in(given);
    const float change = 1.0F - before + 0.001F * static_cast<float>(client);
    return FitResult{.parameters = one_number(client < 4 ? before - 10 * change : before + change), .rows = 1};
  };
  const auto learnt = [&](const strategy::FederatedAggregation& rule) {
    SimulatedClients clients(clients_of(script, 20));
    Federated strategy = for_clients(20);
    strategy.aggregation = rule;
    FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
    for (int i = 0; i < 3; ++i) (void)rounds.run();
    return number_in(rounds.parameters());
  };
  EXPECT_GT(std::abs(learnt(strategy::FedAvg{}) - 1), 1.0F);
  for (const strategy::FederatedAggregation& rule : std::vector<strategy::FederatedAggregation>{
           strategy::Median{}, strategy::TrimmedMean{}, strategy::Krum{.byzantine = 4},
           strategy::MultiKrum{.byzantine = 4}, strategy::Bulyan{.byzantine = 4}})
    EXPECT_NEAR(learnt(rule), 1.0F, 0.05F);
}

TEST(FederatedRounds, RefuseRulesThatWouldLeaveNothingOut) {
  const Script script;
  SimulatedClients clients(clients_of(script, 12));
  const auto why = [&](const strategy::FederatedAggregation& rule, const strategy::FederatedRound& round) {
    Federated strategy = for_clients(12);
    strategy.aggregation = rule;
    strategy.round = round;
    return usage_error([&] { FederatedRounds(one_number(0), clients, {.strategy = strategy}); });
  };
  EXPECT_EQ(why(strategy::TrimmedMean{.fraction = 0.2}, Synchronous{.replies = 4}),
            "TrimmedMean: expected at least 5 updates, of which 0.2 leaves one out, found 4");
  EXPECT_EQ(why(strategy::TrimmedMean{.fraction = 0.2}, Synchronous{.replies = 5}), "(no error)");
  EXPECT_EQ(why(strategy::MultiKrum{.byzantine = 4, .keep = 12}, Synchronous{}),
            "MultiKrum: expected to keep at most 8 of 12 updates, 4 of which may be hostile, found 12");
  EXPECT_EQ(why(strategy::Krum{.byzantine = 4}, Synchronous{.replies = 5}),
            "Krum: expected at least 11 updates, for 4 that may be hostile, found 5");
  EXPECT_EQ(why(strategy::Median{}, Buffered{.replies = 13}),
            "a change is made of 13 updates, each of another client, and there are 12 clients");
}

TEST(FederatedRounds, EndBeforeTheModelIsNoLongerFinite) {
  Script script;
  script.fit = [](std::int64_t, const ParameterSet&, const FitInstructions&) {
    return FitResult{.parameters = one_number(3e38F), .rows = 1};
  };
  SimulatedClients clients(clients_of(script, 2));
  Federated strategy = for_clients(2);
  strategy.aggregation = strategy::FedAvgM{.momentum = 0.9, .lr = 1};
  FederatedRounds rounds(one_number(-3e38F), clients, {.strategy = strategy});
  (void)rounds.run();
  try {
    (void)rounds.run();
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("round 2: \"x\" would no longer have finite numbers"));
  }
  EXPECT_EQ(rounds.finished(), 1);
  EXPECT_TRUE(std::isfinite(number_in(rounds.parameters())));
}

}  // namespace
}  // namespace tutti
