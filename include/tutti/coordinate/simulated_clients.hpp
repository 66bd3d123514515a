// Clients that are simulated in this process, on as many threads as one likes and on a clock of their own: who is slow
// answers late on that clock, and nobody waits for it.
//
//   SimulatedClients clients({.clients = std::vector<ClientInfo>(100),
//                             .behaviour = behaviours,                       // by client
//                             .make = [&](std::int64_t client) { return std::make_unique<MyClient>(client); }});
//   FederatedRounds rounds(initial_parameters, clients, {.strategy = strategy});
//
// A client is made when it is asked, and gone when it has answered; what it keeps between rounds, its state() and what
// remains of compression, lies in a temporary file. So memory holds a model for each thread, and a few answers that
// wait for their turn, however many clients there are. Answers come in the order of the clock, of equal times in one
// that the seed draws for each call: the same bits on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/base/parameter_store.hpp>
#include <tutti/coordinate/client_pool.hpp>
#include <tutti/coordinate/federated_client.hpp>
#include <tutti/strategy/compression.hpp>

namespace tutti {

struct ClientBehaviour {
  double fit_seconds = 0;    // on the clock
  double dropout = 0;        // how likely it is that it never answers; that is noticed when its answer is due
  double failure = 0;        // how likely it is that it fails on the way, and says so
  double update_factor = 1;  // what it multiplies its change by before it sends it: -10 of one that is hostile
};

struct SimulatedClientsOptions {
  std::vector<ClientInfo> clients = {};
  std::vector<ClientBehaviour> behaviour = {};  // by client; the default's where empty
  // Called on any of the threads, for a task; with the client's number.
  std::function<std::unique_ptr<FederatedClient>(std::int64_t client)> make = {};
  Compression compression = NoCompression{};
  std::vector<bool> is_trained = {};  // by array: what is compressed; all where empty
  int threads = 1;
  std::uint64_t seed = 0;                // of who drops out and fails
  Duration deadline = kDefaultDeadline;  // in real time, for the answer of a client
  std::filesystem::path folder = {};     // of the temporary file; the system's where empty
  // Called on each thread first.
  std::function<void()> prepare_thread = {};

  ClientBehaviour behaviour_of(std::int64_t client) const {
    return behaviour.empty() ? ClientBehaviour{} : behaviour[static_cast<std::size_t>(client)];
  }
};

class SimulatedClients final : public ClientPool {
 public:
  // A UsageError where there are no clients, or another number of behaviours.
  explicit SimulatedClients(SimulatedClientsOptions options);
  // Waits for tasks that are being computed, as long as the deadline says.
  ~SimulatedClients() override;
  SimulatedClients(const SimulatedClients&) = delete;
  SimulatedClients& operator=(const SimulatedClients&) = delete;

  const std::vector<ClientInfo>& clients() const override;
  bool is_free(std::int64_t client) const override;
  Compression compression() const override;
  std::uint64_t ask(ClientTask task) override;
  // An Error where a client does not answer within the deadline.
  std::optional<ClientReply> next(double until) override;
  double now() const override { return now_; }

  // What a client keeps: its state(), and what remains of compression. Empty where it has nothing yet.
  ParameterSet state_of(std::int64_t client) const;

  // All that the next answers depend on is the clock and what clients are asked, and what each client keeps, array by
  // array. Of a checkpoint the latter is restored first. `layout` is that of the parameters.
  void save(ParameterSet& arrays) const;
  std::vector<ArrayOnDemand> save_kept() const;
  static bool is_kept(const std::string& name);
  void restore_kept(const ParameterLayout& layout, std::span<const std::byte> bytes);
  void restore(const ParameterSet& arrays, const ParameterSet& layout);

 private:
  struct Pending;
  struct Shared;
  // When it answers; of equal times evaluations first, then as it is drawn, so that nobody is always last.
  using Turn = std::tuple<double, bool, std::uint64_t, std::int64_t, std::int64_t>;

  void await(std::shared_ptr<Pending> pending);

  std::shared_ptr<Shared> shared_;  // with threads that may outlive this, where a client hangs
  std::map<Turn, std::shared_ptr<Pending>> pending_;
  std::vector<bool> is_busy_;  // with a fit; by client
  double now_ = 0;
  std::int64_t asked_ = 0;
};

}  // namespace tutti
