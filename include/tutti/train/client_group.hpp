// Clients of a federated run that are alike: what they can do, how they learn, and how they behave where they are
// simulated. In a run file:
//
//   "clients": [{"count": 80, "tags": ["phone"], "speed": {"method": "LogNormal", "median": 50, "sigma": 0.5},
//                "dropout": 0.1},
//               {"tags": ["desktop"], "speed": 400, "epochs": 2, "batch_size": 32}]
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/coordinate/distribution.hpp>
#include <tutti/kernels/optimizer.hpp>
#include <tutti/strategy/federated.hpp>
#include <tutti/train/schedule.hpp>

namespace tutti {

struct ClientGroup {
  std::int64_t count = 0;
  bool is_rest = false;  // the file gives no count: they are all clients that are left
  std::vector<std::string> tags = {};
  // Where they are simulated.
  Distribution speed = Always{100};  // steps in a second of their clock
  Distribution dropout = Always{0};  // how likely a client is to drop out of a round
  Distribution failure = Always{0};  // and to fail in it
  double update_factor = 1;          // what they multiply their changes by: -10, where they are hostile
  // Their own; the run's where there is none.
  std::optional<strategy::LocalTraining> local = {};
  std::optional<std::int64_t> batch_size = {};
  std::optional<OptimizerRule> optimizer = {};
  std::optional<Schedule> schedule = {};  // over the steps of a round
};

// So many clients in groups, one after the other; the last may be without a count, and has the rest. A UsageError where
// they are not as many.
std::vector<ClientGroup> client_groups_from_json(const JsonValue& list, std::int64_t clients);
nlohmann::ordered_json to_json(const ClientGroup& group);

}  // namespace tutti
