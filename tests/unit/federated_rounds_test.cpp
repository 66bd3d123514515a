#include <tutti/coordinate/federated_rounds.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scripted_clients.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/simulated_clients.hpp>

namespace tutti {
namespace {

using strategy::Buffered;
using strategy::Discount;
using strategy::Federated;
using strategy::Synchronous;
using strategy::TooFew;
using testing::clients_of;
using testing::for_clients;
using ::testing::HasSubstr;
using testing::number_in;
using testing::one_number;
using testing::Script;
using testing::usage_error;

template <typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(FederatedRounds, MergesTheMeansOfTwoHalvesExactly) {
  // 0..3 and 4..7: each client learns the mean of its half.
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet&, const FitInstructions&) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(4 * client + i);
    return FitResult{.parameters = one_number(sum / 4), .rows = 4};
  };
  for (const float first : {0.0F, 0.37F, -100.25F, 1e6F}) {
    SimulatedClients clients(clients_of(script, 2));
    FederatedRounds rounds(one_number(first), clients, {.strategy = for_clients(2)});
    (void)rounds.run();
    EXPECT_EQ(number_in(rounds.parameters()), 3.5F) << first;
  }
}

TEST(FederatedRounds, WeighUpdatesAndMetricsByRows) {
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet&, const FitInstructions&) {
    return FitResult{.parameters = one_number(client == 0 ? 4.0F : 0.0F),
                     .rows = client == 0 ? 1 : 3,
                     .loss = client == 0 ? 8.0 : 4.0,
                     .metrics = {{"accuracy", client == 0 ? 1.0 : 0.5}}};
  };
  SimulatedClients clients(clients_of(script, 2));
  FederatedRounds rounds(one_number(9), clients, {.strategy = for_clients(2)});
  const RoundReport report = rounds.run();
  EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
  EXPECT_EQ(report.rows, 4);
  EXPECT_EQ(report.loss, 5.0);
  ASSERT_EQ(report.metrics.size(), 1U);
  EXPECT_EQ(report.metrics[0].value, 0.625);
  EXPECT_EQ(report.round, 1);
  EXPECT_EQ(rounds.finished(), 1);
  EXPECT_EQ(report.bytes_down, 8U);
  EXPECT_EQ(report.bytes_up, 8U);
}

TEST(FederatedRounds, TellClientsWhatTheyNeedToKnow) {
  std::mutex mutex;
  std::vector<FitInstructions> told;
  Script script;
  script.fit = [&](std::int64_t, const ParameterSet& given, const FitInstructions& instructions) {
    const std::lock_guard lock(mutex);
    told.push_back(instructions);
    return FitResult{.parameters = given, .rows = 1};
  };
  SimulatedClients clients(clients_of(script, 1));
  Federated strategy = for_clients(1);
  strategy.aggregation = strategy::FedProx{.mu = 0.25};
  strategy.local = {.steps = 40};
  FederatedRounds rounds(one_number(1), clients, {.strategy = strategy});
  (void)rounds.run(1);
  (void)rounds.run(0.5);
  EXPECT_EQ(told, (std::vector<FitInstructions>{
                      {.round = 1, .draw = 1, .rate_factor = 1, .mu = 0.25, .local = {.steps = 40}},
                      {.round = 2, .draw = 2, .rate_factor = 0.5, .mu = 0.25, .local = {.steps = 40}}}));
}

TEST(FederatedRounds, CountTheRowsThatWereComputedWith) {
  Script script;
  script.fit = [](std::int64_t, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = given, .rows = 3, .trained = 12};
  };
  SimulatedClients clients(clients_of(script, 2));
  FederatedRounds rounds(one_number(4), clients, {.strategy = for_clients(2)});
  EXPECT_EQ(rounds.run().rows, 24);
}

TEST(FederatedRounds, LeaveOutEvaluationsThatCannotBe) {
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    return ClientEvaluation{.rows = client == 1 ? std::int64_t{1} << 62 : 2, .loss = client == 2 ? std::nan("") : 0.25};
  };
  SimulatedClients clients(clients_of(script, 3));
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(3)});
  std::vector<std::string> problems;
  const ClientEvaluation evaluation = rounds.evaluate({0, 1, 2}, &problems);
  EXPECT_EQ(evaluation.rows, 2);
  EXPECT_EQ(evaluation.loss, 0.25);
  EXPECT_EQ(problems.size(), 2U);
  EXPECT_TRUE(std::isnan(rounds.evaluate({2}).loss));
}

// --- a round that has enough ---

TEST(FederatedRounds, EndWithTheFirstRepliesThatSuffice) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 10);
  for (int i = 0; i < 10; ++i) options.behaviour.push_back({.fit_seconds = 10.0 - i});  // the last is the fastest
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(10);
  strategy.round = Synchronous{.replies = 3};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport report = rounds.run();
  EXPECT_EQ(report.asked, 10);
  EXPECT_EQ(report.updates, 3);
  EXPECT_EQ(number_in(rounds.parameters()), 8.0F);  // 9, 8 and 7
  EXPECT_EQ(report.seconds, 3.0);
}

TEST(FederatedRounds, AskMoreThanTheyNeed) {
  const Script script;
  SimulatedClients clients(clients_of(script, 100));
  Federated strategy = for_clients(100);
  strategy.client_selection = strategy::Random{.fraction = 0.1};
  strategy.round = Synchronous{.ask_beyond = 5};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport report = rounds.run();
  EXPECT_EQ(report.asked, 15);
  EXPECT_EQ(report.updates, 10);
}

// --- a round that has too few ---

TEST(FederatedRounds, EndTheRunOrRepeatWhereTheDeadlinePasses) {
  const Script script;
  for (const TooFew too_few : {TooFew::end, TooFew::repeat}) {
    SimulatedClientsOptions options = clients_of(script, 4);
    options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2}, {.fit_seconds = 30}, {.fit_seconds = 40}};
    SimulatedClients clients(std::move(options));
    Federated strategy = for_clients(4);
    strategy.round = Synchronous{.replies = 3, .deadline = 10, .too_few = too_few, .max_repeats = 1};
    FederatedRounds rounds(one_number(7), clients, {.strategy = strategy});
    try {
      (void)rounds.run();
      FAIL() << "expected an error";
    } catch (const Error& error) {
      const std::string expected = "round 1: it had 2 of the 3 good updates that it needs";
      EXPECT_EQ(std::string(error.what()).substr(0, expected.size()), expected);
    }
    EXPECT_EQ(number_in(rounds.parameters()), 7.0F);
    EXPECT_EQ(clients.now(), too_few == TooFew::end ? 10.0 : 20.0);
  }
}

TEST(FederatedRounds, SayWhatBecameOfThoseWhoAreMissing) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 5);
  options.behaviour = {{.fit_seconds = 0.1},
                       {.fit_seconds = 0.1, .dropout = 1},
                       {.fit_seconds = 0.1, .dropout = 1},
                       {.fit_seconds = 0.1, .failure = 1},
                       {.fit_seconds = 30}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(5);
  strategy.round = Synchronous{.replies = 2, .deadline = 0.3, .too_few = TooFew::end};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  EXPECT_EQ(error_of([&] { (void)rounds.run(); }),
            "round 1: it had 1 of the 2 good updates that it needs, from 5 that were asked (3 failed, of which 2 "
            "dropped out, 0 refused, 1 not yet answered after 0.3 s)");
}

TEST(FederatedRounds, SayThatARoundIsRepeated) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 2);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2.5}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(2);
  strategy.round = Synchronous{.deadline = 2};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport report = rounds.run();
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0],
            "round 1: it had 1 of the 2 good updates that it needs, from 2 that were asked (0 failed, 0 refused, 1 not "
            "yet answered after 2 s); it is repeated");
}

TEST(FederatedRounds, AskForTheLearningRateWhereAllUpdatesHaveGoneAstray) {
  const std::string question = "; is the learning rate too large?";
  for (const strategy::FederatedRound& round : std::vector<strategy::FederatedRound>{Synchronous{}, Buffered{}}) {
    for (const bool all : {true, false}) {
      Script script;
      script.fit = [&](std::int64_t client, const ParameterSet&, const FitInstructions&) {
        const bool is_astray = all || client == 0;
        return FitResult{.parameters = one_number(is_astray ? NAN : 1.0F), .rows = is_astray ? 1 : 0};
      };
      SimulatedClientsOptions options = clients_of(script, 3);
      options.behaviour.assign(3, {.fit_seconds = 1});  // otherwise the first would always come first
      SimulatedClients clients(std::move(options));
      Federated strategy = for_clients(3);
      strategy.round = round;
      FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
      const std::string why = error_of([&] { (void)rounds.run(); });
      EXPECT_EQ(why.ends_with(question), all) << why;
    }
  }
}

TEST(FederatedRounds, GoOnAfterARoundThatWasRepeated) {
  std::atomic<int> calls = 0;
  Script script;
  script.fit = [&](std::int64_t client, const ParameterSet&, const FitInstructions&) {
    if (client == 0 && calls++ == 0) throw std::runtime_error("the battery is empty\nand more");
    return FitResult{.parameters = one_number(2), .rows = 1};
  };
  SimulatedClients clients(clients_of(script, 3));
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(3)});
  const RoundReport report = rounds.run();
  EXPECT_EQ(report.repeats, 1);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.updates, 3);
  EXPECT_EQ(report.dropped, 0);
  EXPECT_EQ(report.asked, 4);  // only who is missing is asked again
  EXPECT_EQ(report.problems.front(), "client 0 failed: the battery is empty");
  EXPECT_EQ(number_in(rounds.parameters()), 2.0F);
}

TEST(FederatedRounds, EndWhereAllClientsFailAllTheTime) {
  Script script;
  script.fit = [](std::int64_t, const ParameterSet&, const FitInstructions&) -> FitResult {
    throw std::runtime_error("no");
  };
  for (const strategy::FederatedRound& round : std::vector<strategy::FederatedRound>{Synchronous{}, Buffered{}}) {
    SimulatedClients clients(clients_of(script, 3));
    Federated strategy = for_clients(3);
    strategy.round = round;
    FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
    EXPECT_THROW((void)rounds.run(), Error);
  }
}

TEST(FederatedRounds, NeedAsManyAsTheRuleDoesWhereCandidatesCannotEvaluate) {
  // Two of five never measure a loss. The others are too few for what TrimmedMean is to leave out.
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    if (client > 2) throw std::runtime_error("no rows");
    return ClientEvaluation{.rows = 1, .loss = 1};
  };
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 1000.0F : 1.0F)), .rows = 1};
  };
  for (const bool is_robust : {false, true}) {
    SimulatedClients clients(clients_of(script, 5));
    Federated strategy = for_clients(5);
    strategy.client_selection = strategy::PowerOfChoice{.fraction = 1, .candidates = 1};
    if (is_robust) strategy.aggregation = strategy::TrimmedMean{.fraction = 0.2};
    FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
    EXPECT_THAT(error_of([&] { (void)rounds.run(); }), HasSubstr("it had 3 of the 5 good updates that it needs"));
    EXPECT_EQ(number_in(rounds.parameters()), 0.0F);
  }
}

TEST(FederatedRounds, GoOnAfterAnErrorWithAFreshCount) {
  // The first round ends with two clients still at work, who are no part of the second one.
  std::atomic<bool> may_fail = true;
  Script script;
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    if (client == 0 && may_fail.exchange(false)) throw std::runtime_error("not now");
    return FitResult{.parameters = one_number(number_in(given) + 1), .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 4);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 3}, {.fit_seconds = 3}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(4);
  strategy.round = Synchronous{.deadline = 2, .too_few = strategy::TooFew::end};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  EXPECT_THAT(error_of([&] { (void)rounds.run(); }), HasSubstr("2 not yet answered after 2 s"));
  const RoundReport report = rounds.run();  // of the two that are free, while the leftovers come in
  EXPECT_EQ(report.asked, 2);
  EXPECT_EQ(report.updates, 2);
  EXPECT_EQ(rounds.finished(), 1);
}

TEST(FederatedRounds, DoNotWaitForAStragglerOfAnEarlierRoundWhereOthersCanBeAsked) {
  // Client 0 is still at work for the first round when half of the others fail, each once in a round.
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> failed;
  Script script;
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions& instructions) {
    const std::lock_guard lock(mutex);
    if (instructions.round > 1 && client % 2 == 1 && failed.insert({instructions.round, client}).second)
      throw std::runtime_error("not now");
    return FitResult{.parameters = given, .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 12);
  for (int i = 0; i < 12; ++i) options.behaviour.push_back({.fit_seconds = i == 0 ? 1e6 : 1});
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(12);
  strategy.round = Synchronous{.replies = 7};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  for (int round = 1; round <= 10; ++round) EXPECT_EQ(rounds.run().repeats, round == 1 ? 0 : 1);
  EXPECT_LT(clients.now(), 100);
}

// --- who is asked ---

TEST(FederatedRounds, AskThoseWithTheHighestLoss) {
  std::mutex mutex;
  std::set<std::int64_t> trained;
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    return ClientEvaluation{.rows = 1, .loss = static_cast<double>(client)};
  };
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    const std::lock_guard lock(mutex);
    trained.insert(client);
    return FitResult{.parameters = given, .rows = 1};
  };
  SimulatedClients clients(clients_of(script, 10));
  Federated strategy = for_clients(10);
  strategy.client_selection = strategy::PowerOfChoice{.fraction = 0.2, .candidates = 1};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  (void)rounds.run();
  EXPECT_EQ(trained, (std::set<std::int64_t>{8, 9}));
}

TEST(FederatedRounds, ChooseAmongTheCandidatesWhoAnswer) {
  std::mutex mutex;
  std::set<std::int64_t> trained;
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    if (client >= 8) throw std::runtime_error("no rows");
    return ClientEvaluation{.rows = 1, .loss = static_cast<double>(client)};
  };
  script.fit = [&](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    const std::lock_guard lock(mutex);
    trained.insert(client);
    return FitResult{.parameters = given, .rows = 1};
  };
  SimulatedClients clients(clients_of(script, 10));
  Federated strategy = for_clients(10);
  strategy.client_selection = strategy::PowerOfChoice{.fraction = 0.2, .candidates = 1};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  EXPECT_EQ(rounds.run().problems,
            (std::vector<std::string>{"client 8 could not evaluate: no rows", "client 9 could not evaluate: no rows"}));
  EXPECT_EQ(trained, (std::set<std::int64_t>{6, 7}));
}

TEST(FederatedRounds, ChooseByLossAmongThoseWhoAreNotAtWork) {
  // The two with the highest losses are slow: while they are at work others are asked.
  Script script;  // each goes to its own number
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    return ClientEvaluation{.rows = 1, .loss = static_cast<double>(client)};
  };
  SimulatedClientsOptions options = clients_of(script, 6);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1},  {.fit_seconds = 1},
                       {.fit_seconds = 1}, {.fit_seconds = 25}, {.fit_seconds = 35}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(6);
  strategy.client_selection = strategy::PowerOfChoice{.fraction = 0.5, .candidates = 1};
  strategy.round = Synchronous{.replies = 2, .deadline = 10, .late = Discount{.factor = 0.5}};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const auto at_work = [&] {
    std::set<std::int64_t> busy;
    for (std::int64_t client = 0; client < 6; ++client) {
      if (!clients.is_free(client)) busy.insert(client);
    }
    return busy;
  };
  // The deadline passes twice. Nobody else is asked, since all three are at work or have answered.
  RoundReport report = rounds.run();
  EXPECT_EQ(report.asked, 3);
  EXPECT_EQ(report.repeats, 2);
  EXPECT_EQ(report.updates, 2);
  EXPECT_EQ(report.seconds, 25.0);
  EXPECT_EQ(number_in(rounds.parameters()), 3.5F);  // of 3 and 4
  EXPECT_EQ(at_work(), std::set<std::int64_t>{5});
  // In the second round the slowest is still at work, and evaluates nothing.
  report = rounds.run();
  EXPECT_EQ(report.asked, 3);
  EXPECT_EQ(report.late, 0);
  EXPECT_EQ(report.seconds, 26.0);
  EXPECT_EQ(number_in(rounds.parameters()), 2.5F);  // of 2 and 3
  EXPECT_EQ(at_work(), (std::set<std::int64_t>{4, 5}));
}

TEST(FederatedRounds, RefuseACompressionThatThePoolDoesNotHave) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 2);
  options.compression = TopK{.fraction = 0.5};
  SimulatedClients clients(std::move(options));
  const auto why = [&](const Compression& compression) {
    Federated strategy = for_clients(2);
    strategy.compression = compression;
    return usage_error([&] { FederatedRounds(one_number(0), clients, {.strategy = strategy}); });
  };
  EXPECT_EQ(why(TopK{.fraction = 0.5}), "(no error)");
  EXPECT_EQ(why(NoCompression{}), "(no error)");  // the strategy says nothing of it
  EXPECT_EQ(why(TopK{.fraction = 0.25}), "compression: expected that of the clients' pool, TopK:0.5, found TopK:0.25");
  EXPECT_EQ(why(Float16{}), "compression: expected that of the clients' pool, TopK:0.5, found Float16");
}

TEST(FederatedRounds, RefuseWhatCouldNeverEnd) {
  const Script script;
  const auto error_of = [&](const Federated& strategy) {
    SimulatedClients clients(clients_of(script, 10));
    return usage_error([&] { FederatedRounds(one_number(0), clients, {.strategy = strategy}); });
  };
  Federated strategy = for_clients(10);
  strategy.client_selection = strategy::Random{.fraction = 0.3};
  strategy.round = Synchronous{.replies = 5};
  EXPECT_EQ(error_of(strategy), "a round needs 5 updates, and asks 3 clients: it could never end");
  strategy.round = Synchronous{.replies = 5, .ask_beyond = 2};
  EXPECT_EQ(error_of(strategy), "(no error)");
  strategy = for_clients(10);
  strategy.aggregation = strategy::Krum{.byzantine = 4};
  EXPECT_NE(error_of(strategy).find("11"), std::string::npos);
  EXPECT_NE(error_of(strategy).find("10"), std::string::npos);
  strategy = for_clients(10);
  strategy.client_selection = strategy::ByCapability{{"gpu"}};
  EXPECT_EQ(error_of(strategy), "none of 10 clients has all of the required tags: gpu");
  EXPECT_EQ(error_of(for_clients(11)), "expected 11 clients, as num_clients says, found 10");
}

// --- rounds that are not waited for ---

TEST(BufferedRounds, WeighUpdatesByHowOldTheirModelIs) {
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 1.0F : 7.0F)), .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 2);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2.5}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(2);
  strategy.round = Buffered{.replies = 2, .staleness_exponent = 1};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  (void)rounds.run();  // client 0, at 1 and 2, both of the first model: +1
  EXPECT_FLOAT_EQ(number_in(rounds.parameters()), 1.0F);
  EXPECT_EQ(clients.now(), 2.0);
  const RoundReport report = rounds.run();  // client 1 at 2.5, a model old, and client 0 at 3: (7 / 2 + 1) / 1.5 = 3
  EXPECT_FLOAT_EQ(number_in(rounds.parameters()), 4.0F);
  EXPECT_EQ(report.late, 1);
  EXPECT_EQ(clients.now(), 3.0);
}

TEST(BufferedRounds, DropWhatIsTooOld) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 2);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 10.5}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(2);
  strategy.round = Buffered{.replies = 1, .max_staleness = 3};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  std::int64_t dropped = 0;
  for (int i = 0; i < 20; ++i) dropped += rounds.run().dropped;
  EXPECT_EQ(dropped, 1);
  EXPECT_EQ(number_in(rounds.parameters()), 0.0F);
}

TEST(BufferedRounds, HearAClientOnceWhereEachCountsAsOne) {
  // The first could answer ten times while the others answer once.
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + (client == 0 ? 1000.0F : 1.0F)), .rows = 1};
  };
  SimulatedClientsOptions options = clients_of(script, 5);
  options.behaviour = {
      {.fit_seconds = 0.1}, {.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 1}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(5);
  strategy.aggregation = strategy::Median{};
  strategy.round = Buffered{.replies = 3, .staleness_exponent = 0};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  const RoundReport report = rounds.run();
  EXPECT_EQ(report.updates, 3);
  EXPECT_EQ(report.asked, 5);
  EXPECT_EQ(number_in(rounds.parameters()), 1.0F);
}

TEST(BufferedRounds, EndWhereOneOfTheClientsThatTheRuleNeedsNeverSucceeds) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 4);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 1}, {.fit_seconds = 1, .failure = 1}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(4);
  strategy.aggregation = strategy::Median{};
  strategy.round = Buffered{.replies = 4};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  try {
    (void)rounds.run();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "round 1: it had 3 of the 4 good updates that it needs, each of another client, and the last 140 answers "
              "were no good (of all 142 failed, 0 refused, 0 too old)");
  }
}

// --- the same bits ---

// Clients that draw, differ in speed, drop out and fail.
Script drawing_script() {
  Script script;
  script.fit = [](std::int64_t client, const ParameterSet& given, const FitInstructions& instructions) {
    RandomStream draws({static_cast<std::uint64_t>(client), static_cast<std::uint64_t>(instructions.round),
                        static_cast<std::uint64_t>(instructions.local.steps)});
    ParameterSet trained = given;
    for (float& number : trained[0].values<float>()) number += static_cast<float>(draws.normal());
    return FitResult{.parameters = trained, .rows = 1 + client % 7, .loss = draws.uniform()};
  };
  script.evaluate = [](std::int64_t client, const ParameterSet& given) {
    RandomStream draws({static_cast<std::uint64_t>(client)});
    return ClientEvaluation{.rows = 1, .loss = draws.normal() + given[0].values<float>()[0]};
  };
  return script;
}

SimulatedClientsOptions restless_clients(const Script& script, int threads, const Compression& compression) {
  SimulatedClientsOptions options = clients_of(script, 30, threads);
  for (int i = 0; i < 30; ++i)
    options.behaviour.push_back({.fit_seconds = 1 + 0.37 * ((i * 7) % 11), .dropout = 0.1, .failure = 0.1});
  options.compression = compression;
  return options;
}

ParameterSet many_numbers() {
  ParameterSet set;
  set.add({.name = "w", .shape = {40, 5}});
  return set;
}

// Rounds of those with the highest losses, some of whom are late.
Federated by_loss_with_a_deadline() {
  Federated strategy = for_clients(30);
  strategy.client_selection = strategy::PowerOfChoice{.fraction = 0.3, .candidates = 0.6};
  strategy.round = Synchronous{.replies = 6, .ask_beyond = 3, .deadline = 3, .late = Discount{}, .max_repeats = 50};
  return strategy;
}

std::vector<Federated> restless_strategies() {
  std::vector<Federated> all;
  for (const strategy::FederatedRound& round : std::vector<strategy::FederatedRound>{
           Synchronous{.replies = 6, .ask_beyond = 4, .deadline = 4, .late = Discount{}, .max_repeats = 50},
           Synchronous{.replies = 6, .ask_beyond = 6}, Buffered{.replies = 4}}) {
    for (const strategy::FederatedAggregation& rule : std::vector<strategy::FederatedAggregation>{
             strategy::FedAvg{}, strategy::FedYogi{}, strategy::FedAvgM{}, strategy::Median{}}) {
      Federated strategy = for_clients(30);
      strategy.client_selection = strategy::Random{.fraction = 0.3};
      strategy.round = round;
      strategy.aggregation = rule;
      strategy.local.steps = 7;
      all.push_back(strategy);
    }
  }
  all.push_back(by_loss_with_a_deadline());
  return all;
}

TEST(FederatedRounds, GiveTheSameBitsOnAnyNumberOfThreads) {
  const Script script = drawing_script();
  for (const Federated& strategy : restless_strategies()) {
    std::vector<ParameterSet> learnt;
    for (const int threads : {1, 2, 5}) {
      SimulatedClients clients(restless_clients(script, threads, TopK{.fraction = 0.2}));
      FederatedRounds rounds(many_numbers(), clients, {.strategy = strategy, .seed = 11});
      for (int i = 0; i < 12; ++i) (void)rounds.run();
      learnt.push_back(rounds.parameters());
    }
    EXPECT_TRUE(learnt[0] == learnt[1] && learnt[0] == learnt[2]) << to_string(TrainingStrategy(strategy));
  }
}

TEST(FederatedRounds, GoOnFromACheckpointToTheBit) {
  const Script script = drawing_script();
  for (const Federated& strategy : restless_strategies()) {
    for (const Compression& compression : std::vector<Compression>{NoCompression{}, TopK{.fraction = 0.2}}) {
      SimulatedClients clients(restless_clients(script, 3, compression));
      FederatedRounds rounds(many_numbers(), clients, {.strategy = strategy, .seed = 11});
      ParameterSet saved;
      ParameterSet kept;
      for (int i = 0; i < 10; ++i) {
        if (i == 5) {
          rounds.save(saved);
          clients.save(saved);
          for (const ArrayOnDemand& array : clients.save_kept()) {
            (void)kept.add(array.layout);
            array.read(kept.at(array.layout.name).bytes());
          }
        }
        (void)rounds.run();
      }
      SimulatedClients others(restless_clients(script, 2, compression));
      FederatedRounds resumed(many_numbers(), others, {.strategy = strategy, .seed = 11});
      resumed.restore(saved);
      for (const NamedArray& array : kept) others.restore_kept(array.layout(), array.bytes());
      others.restore(saved, resumed.parameters());
      EXPECT_EQ(resumed.finished(), 5);
      for (int i = 5; i < 10; ++i) (void)resumed.run();
      EXPECT_TRUE(resumed.parameters() == rounds.parameters()) << to_string(TrainingStrategy(strategy));
      EXPECT_EQ(others.now(), clients.now());
      for (std::int64_t client = 0; client < 30; ++client)
        EXPECT_TRUE(others.state_of(client) == clients.state_of(client)) << client;
    }
  }
}

TEST(FederatedRounds, BeginAnewWithMomentsWhereTheRuleHasChanged) {
  Script script;
  script.fit = [](std::int64_t, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + 1), .rows = 1};
  };
  const std::vector<strategy::FederatedAggregation> rules = {strategy::FedAvg{},     strategy::FedAvgM{},
                                                             strategy::FedAdam{},    strategy::FedYogi{},
                                                             strategy::FedAdagrad{}, strategy::Median{}};
  const auto kept_none = [](const strategy::FederatedAggregation& rule) {
    return std::holds_alternative<strategy::FedAvg>(rule) || std::holds_alternative<strategy::Median>(rule);
  };
  const auto rounds_with = [&](const strategy::FederatedAggregation& rule, ClientPool& clients, float first) {
    Federated strategy = for_clients(2);
    strategy.aggregation = rule;
    return FederatedRounds(one_number(first), clients, {.strategy = strategy});
  };
  for (const strategy::FederatedAggregation& before : rules) {
    SimulatedClients clients(clients_of(script, 2));
    FederatedRounds begun = rounds_with(before, clients, 0);
    (void)begun.run();
    (void)begun.run();
    ParameterSet saved;
    begun.save(saved);
    for (const strategy::FederatedAggregation& after : rules) {
      SimulatedClients others(clients_of(script, 2));
      FederatedRounds resumed = rounds_with(after, others, 0);
      const std::vector<std::string> told = resumed.restore(saved);
      if (before == after) {
        EXPECT_EQ(told, std::vector<std::string>());
        continue;
      }
      if (kept_none(before))
        EXPECT_EQ(told, std::vector<std::string>());
      else
        EXPECT_EQ(told, std::vector<std::string>{fmt::format(
                            "the server's rule was {} before, and is {} from now on: what it remembers begins anew",
                            rule_name(before), rule_name(after))});
      SimulatedClients anew(clients_of(script, 2));
      FederatedRounds fresh = rounds_with(after, anew, number_in(begun.parameters()));
      (void)resumed.run();
      (void)fresh.run();
      EXPECT_EQ(number_in(resumed.parameters()), number_in(fresh.parameters()))
          << rule_name(before) << ", " << rule_name(after);
    }
  }
}

}  // namespace
}  // namespace tutti
