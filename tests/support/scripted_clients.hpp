// Federated clients that do what a test says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/federated_client.hpp>
#include <tutti/coordinate/simulated_clients.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti::testing {

inline ParameterSet one_number(float value) {
  ParameterSet set;
  set.add("x", {1}, std::span(&value, 1));
  return set;
}

inline float number_in(const ParameterSet& set) { return set.at("x").values<float>()[0]; }

// What a test says a client does; otherwise it answers with its own number.
struct Script {
  std::function<FitResult(std::int64_t client, const ParameterSet&, const FitInstructions&)> fit =
      [](std::int64_t client, const ParameterSet&, const FitInstructions&) {
        return FitResult{.parameters = one_number(static_cast<float>(client)), .rows = 1};
      };
  std::function<ClientEvaluation(std::int64_t client, const ParameterSet&)> evaluate =
      [](std::int64_t, const ParameterSet&) { return ClientEvaluation{.rows = 1}; };
};

class ScriptedClient final : public FederatedClient {
 public:
  ScriptedClient(const Script& script, std::int64_t client) : script_(script), client_(client) {}

  FitResult fit(const ParameterSet& parameters, const FitInstructions& instructions) override {
    ++rounds_;
    return script_.fit(client_, parameters, instructions);
  }
  ClientEvaluation evaluate(const ParameterSet& parameters) override { return script_.evaluate(client_, parameters); }
  ParameterSet state() const override {
    ParameterSet state;
    state.add("rounds", {}, std::span(&rounds_, 1));
    return state;
  }
  void restore(const ParameterSet& state) override { rounds_ = state.at("rounds").values<std::int64_t>()[0]; }

 private:
  const Script& script_;
  std::int64_t client_;
  std::int64_t rounds_ = 0;
};

inline SimulatedClientsOptions clients_of(const Script& script, std::int64_t count, int threads = 2) {
  return {.clients = std::vector<ClientInfo>(static_cast<std::size_t>(count)),
          .make = [&script](std::int64_t client) { return std::make_unique<ScriptedClient>(script, client); },
          .threads = threads,
          .seed = 3,
          .deadline = std::chrono::seconds(60)};
}

inline strategy::Federated for_clients(std::int64_t count) { return {.num_clients = count, .rounds = 100}; }

}  // namespace tutti::testing
