// Federated training in a program of one's own: clients with a module, rows and a loop of their own. Each of ten
// clients knows a tenth of a curve, and keeps it to itself; together they learn all of it.
//
// What tutti asks of a client is fit() and evaluate() on a set of named arrays: FederatedClient needs no torch, and
// what is behind it could be anything.
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <vector>

#include <torch/torch.h>
#include <tutti/coordinate/federated_rounds.hpp>
#include <tutti/coordinate/simulated_clients.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>

namespace {

constexpr std::int64_t kClients = 10;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(1, 32));
    second = register_module("second", torch::nn::Linear(32, 32));
    last = register_module("last", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(second(torch::tanh(first(x))))); }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
};

torch::Tensor curve(const torch::Tensor& x) { return torch::sin(3 * x); }

class CurveClient : public tutti::FederatedClient {
 public:
  // Of the piece of [-1, 1] that is this client's.
  explicit CurveClient(std::int64_t client) {
    const double width = 2.0 / kClients;
    const double begin = -1 + width * static_cast<double>(client);
    x_ = torch::linspace(begin, begin + width, 40).unsqueeze(1);
    y_ = curve(x_);
  }

  tutti::FitResult fit(const tutti::ParameterSet& parameters, const tutti::FitInstructions& instructions) override {
    tutti::fill_module(parameters, net_);
    torch::optim::SGD optimizer(net_.parameters(), 0.1 * instructions.rate_factor);
    double loss = 0;
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const torch::Tensor difference = torch::mse_loss(net_.forward(x_), y_);
      difference.backward();
      optimizer.step();
      loss = difference.item<double>();
    }
    tutti::FitResult result{.rows = x_.size(0), .loss = loss};
    tutti::add_module(result.parameters, net_);
    return result;
  }

  tutti::ClientEvaluation evaluate(const tutti::ParameterSet& parameters) override {
    tutti::fill_module(parameters, net_);
    const torch::NoGradGuard no_gradients;
    return {.rows = x_.size(0), .loss = torch::mse_loss(net_.forward(x_), y_).item<double>()};
  }

 private:
  Net net_;
  torch::Tensor x_, y_;
};

int train() {
  torch::manual_seed(1);
  Net net;
  tutti::ParameterSet initial;
  tutti::add_module(initial, net);

  // Here they are simulated: each is made when it is asked, on one of two threads.
  tutti::SimulatedClients clients({.clients = std::vector<tutti::ClientInfo>(kClients),
                                   .make = [](std::int64_t client) { return std::make_unique<CurveClient>(client); },
                                   .threads = 2,
                                   .prepare_thread = tutti::use_one_thread});
  const tutti::strategy::Federated strategy{.num_clients = kClients,
                                            .rounds = 150,
                                            .aggregation = tutti::strategy::FedAvgM{.momentum = 0.9},
                                            .client_selection = tutti::strategy::All{}};
  tutti::FederatedRounds rounds(initial, clients, {.strategy = strategy, .seed = 1});
  while (rounds.finished() < strategy.rounds) {
    const tutti::RoundReport report = rounds.run();
    if (report.round % 50 == 0)
      std::cout << "round " << report.round << ": " << report.updates << " updates, loss " << report.loss << "\n";
  }

  std::vector<std::int64_t> all(kClients);
  for (std::int64_t client = 0; client < kClients; ++client) all[static_cast<std::size_t>(client)] = client;
  const double loss = rounds.evaluate(all).loss;
  tutti::fill_module(rounds.parameters(), net);
  std::cout << "the clients find a loss of " << loss << "; at 0.5 the curve is " << std::sin(1.5) << ", and learnt was "
            << net.forward(torch::full({1, 1}, 0.5)).item<double>() << "\n";
  return loss < 0.01 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::cerr << "federated_client: " << error.what() << "\n";
    return 1;
  }
}
