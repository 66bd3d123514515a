// Which rows belong to which client, where one dataset is dealt out to clients that are simulated.
//
//   const ClientSplit split = Dirichlet{.alpha = 0.5};
//   const ClientRows rows = split_clients(split, {.clients = 100, .rows = 60000, .labels = labels}, seed);
//   rows[17];  // the rows of client 17, in ascending order
//
// Every row is given to one client, and every client has at least one. The result follows from the arguments alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>

namespace tutti {

// Every row as likely with every client; numbers of rows differ by at most one.
struct Iid {
  friend bool operator==(const Iid&, const Iid&) = default;
};

// Rows in the order of their labels are cut into as many pieces as all clients get together, and these dealt out at
// random (McMahan et al., 2017): a client sees few labels.
struct Shards {
  std::int64_t per_client = 2;
  friend bool operator==(const Shards&, const Shards&) = default;
};

// Of each label clients get shares drawn from a Dirichlet distribution: the smaller alpha, the more they differ. Where
// a client ends up without rows, here and below, the one that has the most gives it one.
struct Dirichlet {
  double alpha = 0.5;
  friend bool operator==(const Dirichlet&, const Dirichlet&) = default;
};

// Labels as in all rows, but some clients have many rows and others few: shares of them are drawn from a Dirichlet
// distribution.
struct QuantitySkew {
  double alpha = 0.5;
  friend bool operator==(const QuantitySkew&, const QuantitySkew&) = default;
};

// The data comes in several files, and each is a client's. Nothing is drawn.
struct Files {
  friend bool operator==(const Files&, const Files&) = default;
};

using ClientSplit = std::variant<Iid, Shards, Dirichlet, QuantitySkew, Files>;

// {"method": "Dirichlet", "alpha": 0.5}: read with every key checked, and written with what holds its default.
ClientSplit client_split_from_json(const JsonValue& value);
nlohmann::ordered_json to_json(const ClientSplit& split);
// "Dirichlet (alpha 0.5)".
std::string to_string(const ClientSplit& split);
// Whether it looks at labels, which then are classes.
bool needs_labels(const ClientSplit& split);

struct ClientSplitInputs {
  std::int64_t clients = 0;
  std::int64_t rows = 0;
  std::span<const std::int64_t> labels = {};       // by row: a class; where needs_labels()
  std::span<const std::int64_t> file_of_row = {};  // by row, from 0; for Files
};

using ClientRows = std::vector<std::vector<std::int64_t>>;

// A UsageError where there are fewer rows than clients (of Shards: than pieces), not as many files as clients, or a
// file without rows; the numbers are named.
ClientRows split_clients(const ClientSplit& split, const ClientSplitInputs& inputs, std::uint64_t seed);

// For people: how many rows clients have, and how many of each label. A line for each of up to 20 clients; of more the
// least, the most and the median. Labels may be missing, and those without a name go by their number.
//
//   client  9:  512 rows: 0 x 12, 1 x 500          clients      100
//   client 10: 1030 rows: 1 x 30, 7 x 1000         rows         600 to 600, median 600
//                                                  labels       2 to 4 of 10 per client, median 2
//                                                  main label   50% to 100% of a client's rows, median 50%
//
// Clients may have names, which are files' for example: "client 1 (north.csv): 56 rows".
std::string summarise_clients(const ClientRows& rows, std::span<const std::int64_t> labels,
                              const std::vector<std::string>& label_names,
                              const std::vector<std::string>& client_names = {});

}  // namespace tutti
