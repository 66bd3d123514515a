// A client of federated training: it has rows that it keeps to itself, and learns from them when it is asked to.
//
//   class MyClient : public FederatedClient {
//     FitResult fit(const ParameterSet& parameters, const FitInstructions& instructions) override {
//       model_.load(parameters);
//       const double loss = model_.train(rows_);
//       return {.parameters = model_.parameters(), .rows = rows_.size(), .loss = loss};
//     }
//     ClientEvaluation evaluate(const ParameterSet& parameters) override { ... }
//   };
//
// Whatever computes, libtorch or something else, is the user's: what travels is a ParameterSet. examples/
// federated_client.cpp is a whole program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/strategy/federated.hpp>

namespace tutti {

// What the server says beside its parameters.
struct FitInstructions {
  std::int64_t round = 1;  // from 1 on
  std::int64_t draw = 0;   // another in every call: by it is drawn what a fit draws, such as the order of rows
  double rate_factor = 1;  // what the client's own learning rate is multiplied by
  double mu = 0;           // of FedProx: the gradient of mu/2 |parameters - those of the server|^2 is to be added
  strategy::LocalTraining local = {};  // how long to train, where the client is not told otherwise by whoever made it
  friend bool operator==(const FitInstructions&, const FitInstructions&) = default;
};

struct FitResult {
  ParameterSet parameters = {};  // the same arrays as were given, with other values
  std::int64_t rows = 0;         // that it has: its weight
  std::int64_t trained = 0;      // rows that it computed with, each as often as it did; those that it has, where 0
  double loss = 0;
  std::vector<NamedNumber> metrics = {};  // of its rows
};

struct ClientEvaluation {
  std::int64_t rows = 0;
  double loss = 0;
  std::vector<NamedNumber> metrics = {};
};

// One call at a time. What a call throws is the client's failure in that round, and no more.
class FederatedClient {
 public:
  virtual ~FederatedClient() = default;

  virtual FitResult fit(const ParameterSet& parameters, const FitInstructions& instructions) = 0;
  virtual ClientEvaluation evaluate(const ParameterSet& parameters) = 0;

  // What it keeps from round to round, such as layers of its own: for checkpoints, and where clients are made when they
  // are asked (SimulatedClients, which ask for it before the first fit as well). Nothing, unless it says so.
  virtual ParameterSet state() const { return {}; }
  virtual void restore(const ParameterSet& /*state*/) {}
};

}  // namespace tutti
