// The clients of federated training as the engine of its rounds knows them: who there is, a way to ask, and answers one
// by one. SimulatedClients is one; clients over a network are another.
//
//   pool.ask({.client = 3, .parameters = model, .instructions = {.round = 1}});
//   while (std::optional<ClientReply> reply = pool.next(pool.now() + 30)) ...
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/federated_client.hpp>
#include <tutti/strategy/compression.hpp>

namespace tutti {

struct ClientInfo {
  std::vector<std::string> tags = {};
  std::int64_t rows = 0;  // that it says it has, and an update may count for at most; 0 where it does not say
};

struct ClientTask {
  enum class Kind { fit, evaluate };
  std::int64_t client = 0;
  Kind kind = Kind::fit;
  std::int64_t version = 0;  // how often the server's model had changed
  std::int64_t call = 0;     // the engine's, to tell for what it asked
  std::shared_ptr<const ParameterSet> parameters = {};
  FitInstructions instructions = {};
};

struct ClientReply {
  ClientTask task = {};
  std::string failure = {};      // a sentence where it has failed; the rest is empty then
  bool is_staged = false;        // the failure was simulated, as somebody wished
  bool has_dropped_out = false;  // it failed by not answering
  // Of a fit: trained parameters, or where they were compressed the change of them.
  ParameterSet values = {};
  bool is_change = false;
  std::int64_t rows = 0;
  std::int64_t trained = 0;  // as in FitResult
  double loss = 0;
  std::vector<NamedNumber> metrics = {};
  std::uint64_t bytes = 0;  // that came in
};

// One thread at a time.
class ClientPool {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  virtual ~ClientPool() = default;

  // By their numbers, from 0 on.
  virtual const std::vector<ClientInfo>& clients() const = 0;
  // Whether it has no fit to do. Only then may it be asked for one.
  virtual bool is_free(std::int64_t client) const = 0;
  // Of updates on their way from the clients.
  virtual Compression compression() const = 0;
  // Returns at once: how many bytes go to the client. Each call is answered once, by a failure if need be.
  virtual std::uint64_t ask(ClientTask task) = 0;
  // The next answer, where it comes by then on the pool's clock; otherwise nothing, and that is the time now. Nothing
  // at once where nobody is asked.
  virtual std::optional<ClientReply> next(double until) = 0;
  // Seconds since it began: simulated ones, or real ones.
  virtual double now() const = 0;
};

}  // namespace tutti
