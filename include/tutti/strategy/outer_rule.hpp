// How a model that several train apart changes by the mean of what became of it: by clients in a round, or by replicas
// that took some steps by themselves. coordinate/outer_optimizer.hpp carries them out.
//
//   strategy::OuterRule rule = strategy::FedAvgM{.momentum = 0.9, .lr = 0.7, .nesterov = true};
#pragma once

#include <variant>

namespace tutti::strategy {

// The mean, weighted by rows.
struct FedAvg {
  friend bool operator==(const FedAvg&, const FedAvg&) = default;
};

// The mean of the changes is taken as a gradient, for an optimizer of its own (Reddi et al.: "Adaptive federated
// optimization", 2021; the momentum's is Hsu, Qi, Brown, 2019). Rates are optional in JSON.
struct FedYogi {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double tau = 0.001;
  double lr = 0.01;
  friend bool operator==(const FedYogi&, const FedYogi&) = default;
};

// All optional, in these three.
struct FedAvgM {
  double momentum = 0.9;
  double lr = 1;
  bool nesterov = false;  // steps by the mean and the momentum that comes after it
  friend bool operator==(const FedAvgM&, const FedAvgM&) = default;
};
struct FedAdam {
  double lr = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double tau = 0.001;
  friend bool operator==(const FedAdam&, const FedAdam&) = default;
};
struct FedAdagrad {
  double lr = 0.1;
  double tau = 0.001;
  friend bool operator==(const FedAdagrad&, const FedAdagrad&) = default;
};

using OuterRule = std::variant<FedAvg, FedYogi, FedAvgM, FedAdam, FedAdagrad>;

}  // namespace tutti::strategy
