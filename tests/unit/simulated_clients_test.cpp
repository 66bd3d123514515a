#include <tutti/coordinate/simulated_clients.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <support/scripted_clients.hpp>
#include <support/usage_error.hpp>
#include <tutti/coordinate/federated_rounds.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::Buffered;
using strategy::Federated;
using testing::clients_of;
using testing::for_clients;
using testing::number_in;
using testing::one_number;
using testing::Script;
using testing::ScriptedClient;
using testing::usage_error;

TEST(SimulatedClients, KeepWhatTheySayBetweenRounds) {
  const Script script;
  SimulatedClients clients(clients_of(script, 3));
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(3)});
  for (int i = 0; i < 4; ++i) (void)rounds.run();
  for (std::int64_t client = 0; client < 3; ++client)
    EXPECT_EQ(clients.state_of(client).at("state/rounds").values<std::int64_t>()[0], 4);
}

TEST(SimulatedClients, AreOnlyThereWhileTheyAreAsked) {
  std::atomic<int> alive = 0;
  std::atomic<int> most = 0;
  struct Counted final : FederatedClient {
    Counted(std::atomic<int>& how_many, std::atomic<int>& most_of_them) : alive(how_many) {
      const int now = ++alive;
      int before = most_of_them;
      while (now > before && !most_of_them.compare_exchange_weak(before, now)) {
      }
    }
    ~Counted() override { --alive; }
    FitResult fit(const ParameterSet& given, const FitInstructions&) override {
      return {.parameters = given, .rows = 1};
    }
    ClientEvaluation evaluate(const ParameterSet&) override { return {}; }
    std::atomic<int>& alive;
  };
  SimulatedClients clients({.clients = std::vector<ClientInfo>(200),
                            .make = [&](std::int64_t) { return std::make_unique<Counted>(alive, most); },
                            .threads = 3});
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(200)});
  (void)rounds.run();
  EXPECT_LE(most, 3);
}

TEST(SimulatedClients, ThatHangEndTheRunWithinTheDeadline) {
  auto let_go = std::make_shared<std::atomic<bool>>(false);
  auto script = std::make_shared<Script>();  // outlives the threads that hang
  script->fit = [let_go](std::int64_t client, const ParameterSet& given, const FitInstructions&) {
    while (client == 1 && !*let_go) std::this_thread::sleep_for(1ms);
    return FitResult{.parameters = given, .rows = 1};
  };
  {
    SimulatedClientsOptions options = clients_of(*script, 3);
    options.make = [script](std::int64_t client) { return std::make_unique<ScriptedClient>(*script, client); };
    options.deadline = 100ms;
    SimulatedClients clients(std::move(options));
    FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(3)});
    try {
      (void)rounds.run();
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), "client 1 has not answered within 0.1 s");
    }
  }
  *let_go = true;
}

TEST(SimulatedClients, RefuseWhatCannotBe) {
  const Script script;
  EXPECT_EQ(usage_error([&] { SimulatedClients clients(clients_of(script, 0)); }),
            "expected at least one client, found 0");
  EXPECT_EQ(usage_error([&] { SimulatedClients clients(clients_of(script, 2, 0)); }),
            "expected at least one thread, found 0");
  SimulatedClientsOptions options = clients_of(script, 2);
  options.behaviour.resize(3);
  EXPECT_EQ(usage_error([&] { SimulatedClients clients(std::move(options)); }),
            "expected a behaviour for each of 2 clients, found 3");
  for (const Compression& compression : {Compression(PowerSgd{}), Compression(TopK{.fraction = 2})}) {
    SimulatedClientsOptions compressing = clients_of(script, 2);
    compressing.compression = compression;
    EXPECT_NE(usage_error([&] { SimulatedClients clients(compressing); }), "");
  }
  SimulatedClients clients(clients_of(script, 2));
  const auto model = std::make_shared<const ParameterSet>(one_number(0));
  EXPECT_EQ(usage_error([&] { clients.ask({.client = 2, .parameters = model}); }),
            "there is no client 2: expected 0 to 1");
  clients.ask({.client = 1, .parameters = model});
  EXPECT_EQ(usage_error([&] { clients.ask({.client = 1, .parameters = model}); }),
            "client 1 is asked for a fit while it has one to do");
}

TEST(SimulatedClients, OfTheSameSpeedAreEachHeardAsOften) {
  // Half of those who are asked are waited for: nobody is always the last.
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 10);
  for (int i = 0; i < 10; ++i) options.behaviour.push_back({.fit_seconds = 1});
  SimulatedClients clients(std::move(options));
  std::vector<int> taken(10);
  const auto model = std::make_shared<const ParameterSet>(one_number(0));
  for (std::int64_t call = 0; call < 200; ++call) {
    for (std::int64_t client = 0; client < 10; ++client)
      clients.ask({.client = client, .parameters = model, .instructions = {.draw = call}});
    for (int place = 0; place < 10; ++place) {
      const auto reply = clients.next(ClientPool::kNever);
      ASSERT_TRUE(reply);
      if (place < 5) ++taken[static_cast<std::size_t>(reply->task.client)];
    }
  }
  for (const int times : taken) EXPECT_NEAR(times, 100, 35);  // five standard deviations
}

TEST(SimulatedClients, ThatNobodyMadeHaveFailed) {
  const Script script;
  SimulatedClientsOptions options = clients_of(script, 2);
  options.make = [&](std::int64_t client) {
    return client == 0 ? nullptr : std::make_unique<ScriptedClient>(script, client);
  };
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(2);
  strategy.round = strategy::Synchronous{.replies = 1};
  FederatedRounds rounds(one_number(0), clients, {.strategy = strategy});
  EXPECT_EQ(rounds.run().problems, (std::vector<std::string>{"client 0 failed: nobody made it"}));
}

TEST(SimulatedClients, GoOnFromACheckpointBeforeTheyAreAsked) {
  const Script script;
  SimulatedClients clients(clients_of(script, 2));
  FederatedRounds rounds(one_number(0), clients, {.strategy = for_clients(2)});
  (void)rounds.run();
  ParameterSet saved;
  clients.save(saved);
  EXPECT_EQ(usage_error([&] { clients.restore(saved, rounds.parameters()); }),
            "clients that have been at work cannot go on from a checkpoint");
  for (const ArrayOnDemand& array : clients.save_kept()) {
    EXPECT_TRUE(SimulatedClients::is_kept(array.layout.name));
    EXPECT_EQ(usage_error([&] { clients.restore_kept(array.layout, {}); }),
              "clients that have been at work cannot go on from a checkpoint");
  }
  SimulatedClients fresh(clients_of(script, 2));
  EXPECT_EQ(usage_error([&] { fresh.restore_kept({.name = "client/2/state/rounds", .shape = {1}}, {}); }),
            "\"client/2/state/rounds\" is of a client that is not there");
}

TEST(SimulatedClients, EvaluateWhileOthersTrain) {
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet& given) {
    return ClientEvaluation{
        .rows = client + 1, .loss = number_in(given), .metrics = {{"m", static_cast<double>(client)}}};
  };
  SimulatedClientsOptions options = clients_of(script, 3);
  options.behaviour = {{.fit_seconds = 1}, {.fit_seconds = 2}, {.fit_seconds = 3}};
  SimulatedClients clients(std::move(options));
  Federated strategy = for_clients(3);
  strategy.round = Buffered{.replies = 1};
  FederatedRounds rounds(one_number(4), clients, {.strategy = strategy});
  (void)rounds.run();
  const ClientEvaluation evaluation = rounds.evaluate({0, 1, 2});
  EXPECT_EQ(evaluation.rows, 6);
  EXPECT_EQ(evaluation.loss, number_in(rounds.parameters()));
  EXPECT_DOUBLE_EQ(evaluation.metrics.at(0).value, (0 * 1 + 1 * 2 + 2 * 3) / 6.0);
  EXPECT_EQ(clients.now(), 1.0);
}

TEST(SimulatedClients, ThatCannotEvaluateAreLeftOutAndTold) {
  Script script;
  script.evaluate = [](std::int64_t client, const ParameterSet&) {
    if (client != 1) throw std::runtime_error("no rows");
    return ClientEvaluation{.rows = 5, .loss = 0.5};
  };
  SimulatedClients clients(clients_of(script, 3));
  FederatedRounds rounds(one_number(4), clients, {.strategy = for_clients(3)});
  std::vector<std::string> problems;
  EXPECT_EQ(rounds.evaluate({0, 1, 2}, &problems).loss, 0.5);
  EXPECT_EQ(problems,
            (std::vector<std::string>{"client 0 could not evaluate: no rows", "client 2 could not evaluate: no rows"}));
  try {
    (void)rounds.evaluate({0, 2});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "none of 2 clients could evaluate; client 0 could not evaluate: no rows");
  }
}

TEST(SimulatedClients, MultiplyTheirChangesWhereTheyAreHostile) {
  Script script;
  script.fit = [](std::int64_t, const ParameterSet& given, const FitInstructions&) {
    return FitResult{.parameters = one_number(number_in(given) + 1), .rows = 1};
  };
  for (const Compression& compression : {Compression(NoCompression{}), Compression(Float16{})}) {
    SimulatedClientsOptions options = clients_of(script, 2);
    options.behaviour = {{}, {.update_factor = -10}};
    options.compression = compression;
    SimulatedClients clients(std::move(options));
    FederatedRounds rounds(one_number(4), clients, {.strategy = for_clients(2)});
    (void)rounds.run();
    EXPECT_EQ(number_in(rounds.parameters()), 4 + (1 - 10) / 2.0F);
  }
}

TEST(SimulatedClients, RefuseBehaviourThatCannotBe) {
  const Script script;
  for (const ClientBehaviour& its : {ClientBehaviour{.fit_seconds = std::nan("")}, ClientBehaviour{.fit_seconds = -1},
                                     ClientBehaviour{.dropout = 1.5}, ClientBehaviour{.failure = -0.1}}) {
    SimulatedClientsOptions options = clients_of(script, 1);
    options.behaviour = {its};
    EXPECT_NE(usage_error([&] { SimulatedClients clients(options); }).find("client 0 cannot behave like this"),
              std::string::npos);
  }
  SimulatedClientsOptions options = clients_of(script, 1);
  options.is_trained = {true, false};
  SimulatedClients clients(std::move(options));
  EXPECT_EQ(usage_error([&] { (void)clients.ask({.parameters = std::make_shared<ParameterSet>(one_number(1))}); }),
            "is_trained: expected one for each of 1 arrays, found 2");
}

}  // namespace
}  // namespace tutti
