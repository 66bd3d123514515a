// What the clients of a federated run stand on: whose rows are whose, how each learns, and what of the model travels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/simulated_clients.hpp>
#include <tutti/data/client_split.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

struct ClientSettings {
  strategy::LocalTraining local = {};
  std::int64_t batch_size = 1;
  OptimizerRule optimizer = {};
  std::optional<Schedule> schedule = {};
  bool drop_last = false;  // of an epoch, the rows that make no whole batch, where there is one

  // Of a client with so many rows, in an epoch and in a round.
  std::int64_t rows_per_epoch(std::int64_t rows) const {
    return drop_last && rows >= batch_size ? rows - rows % batch_size : rows;
  }
  std::int64_t steps_per_epoch(std::int64_t rows) const { return (rows_per_epoch(rows) + batch_size - 1) / batch_size; }
  std::int64_t steps(std::int64_t rows) const {
    return local.steps > 0 ? local.steps : local.epochs * steps_per_epoch(rows);
  }
};

// Made before clients are asked; then nobody writes to it.
struct ClientGround {
  std::shared_ptr<const Run> run;
  std::shared_ptr<const Dataset> rows;
  ClientRows train = {};                      // by client: numbers of rows
  ClientRows test = {};                       // by client; empty where they evaluate with nothing of their own
  std::vector<std::int64_t> labels = {};      // by row, where rows have classes
  std::vector<ClientSettings> settings = {};  // by group
  std::vector<std::uint32_t> group_of = {};   // by client
  ParameterSet shared = {};                   // what travels, as it is at first
  std::vector<bool> is_trained = {};          // by array of it
  ParameterSet fixed = {};                    // what is frozen: the same everywhere, and never sent
  ParameterSet personal = {};                 // what stays with each client, as it is at first

  const ClientSettings& settings_of(std::int64_t client) const {
    return settings[group_of[static_cast<std::size_t>(client)]];
  }
};

std::shared_ptr<ClientGround> make_client_ground(std::shared_ptr<const Run> run, std::shared_ptr<const Dataset> rows,
                                                 const GraphModule& net, std::vector<std::string>& warnings);

// By client: tags, rows, and how it behaves.
void describe_clients(const ClientGround& ground, std::vector<ClientInfo>& clients,
                      std::vector<ClientBehaviour>& behaviour);

// Networks that clients are computed with, one for each of those that are computed at a time.
class ClientSeats {
 public:
  explicit ClientSeats(std::shared_ptr<const ClientGround> ground);
  ~ClientSeats();

  // Has a seat as long as it lives. Any thread.
  std::unique_ptr<FederatedClient> seat(std::int64_t client);

 private:
  struct Seat;
  struct Free;
  class GraphClient;

  std::shared_ptr<const ClientGround> ground_;
  std::shared_ptr<Free> free_;
};

}  // namespace tutti::detail
