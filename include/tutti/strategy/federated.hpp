// Federated training as a value: clients that keep their data, and a server that brings together what they learnt.
// docs/federated.md tells how it works; docs/strategies.md has every field with its range and default.
//
//   strategy::Federated strategy{.num_clients = 100, .rounds = 50};
//   strategy.aggregation = strategy::TrimmedMean{.fraction = 0.2};
//   strategy.client_selection = strategy::Random{.fraction = 0.1};
//   strategy.round = strategy::Synchronous{.ask_beyond = 2, .deadline = 30};
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <tutti/strategy/compression.hpp>
#include <tutti/strategy/data_parallel.hpp>

namespace tutti::strategy {

// --- what becomes of the clients' updates ---

// FedAvg with a term that keeps clients near the server's model.
struct FedProx {
  double mu = 0.01;
  friend bool operator==(const FedProx&, const FedProx&) = default;
};

// Those that bear hostile clients: each client counts as one, whatever rows it says it has.

// Of each number the median.
struct Median {
  friend bool operator==(const Median&, const Median&) = default;
};

// Of each number the mean, without this share of the smallest and as many of the largest.
struct TrimmedMean {
  double fraction = 0.2;  // optional
  friend bool operator==(const TrimmedMean&, const TrimmedMean&) = default;
};

// The update that has the nearest neighbours (Blanchard et al., 2017); of n clients `byzantine` may be hostile, where n
// is at least 2 byzantine + 3.
struct Krum {
  std::int64_t byzantine = 0;
  friend bool operator==(const Krum&, const Krum&) = default;
};

// The mean of the best of them by that.
struct MultiKrum {
  std::int64_t byzantine = 0;
  std::int64_t keep = 0;  // optional; where 0 all but as many as may be hostile
  friend bool operator==(const MultiKrum&, const MultiKrum&) = default;
};

// Krum again and again, then of each number the mean of those nearest to the median (El Mhamdi et al., 2018); n is at
// least 4 byzantine + 3.
struct Bulyan {
  std::int64_t byzantine = 0;
  friend bool operator==(const Bulyan&, const Bulyan&) = default;
};

// The mean, weighted by rows, of changes that are first made no longer than this.
struct NormClipping {
  double max_norm = 1;
  friend bool operator==(const NormClipping&, const NormClipping&) = default;
};

using FederatedAggregation = std::variant<FedAvg, FedProx, FedYogi, FedAvgM, FedAdam, FedAdagrad, Median, TrimmedMean,
                                          Krum, MultiKrum, Bulyan, NormClipping>;

// --- who is asked ---

struct All {
  friend bool operator==(const All&, const All&) = default;
};

// This share of the clients, drawn anew each round.
struct Random {
  double fraction = 0.1;
  friend bool operator==(const Random&, const Random&) = default;
};

// Those that have all of these tags.
struct ByCapability {
  std::vector<std::string> required_tags;
  friend bool operator==(const ByCapability&, const ByCapability&) = default;
};

// Of a larger share, drawn by their rows, those on whose rows the model has the highest loss (Cho, Wang, Joshi, 2020).
struct PowerOfChoice {
  double fraction = 0.1;
  double candidates = 0.3;  // the larger share; optional
  friend bool operator==(const PowerOfChoice&, const PowerOfChoice&) = default;
};

using ClientSelection = std::variant<All, Random, ByCapability, PowerOfChoice>;

// --- a round ---

// What becomes of an update that comes after its round.
struct Drop {
  friend bool operator==(const Drop&, const Drop&) = default;
};
// It counts in the next round, with this much of its weight; less for each further round.
struct Discount {
  double factor = 0.5;  // optional
  friend bool operator==(const Discount&, const Discount&) = default;
};
using LateUpdates = std::variant<Drop, Discount>;

// What becomes of a round with fewer good updates than it needs.
enum class TooFew { repeat, end };

// All optional. A round ends with as many good updates as it needs, and with its deadline.
struct Synchronous {
  std::int64_t replies = 0;     // how many it needs; as many as are chosen, where 0
  std::int64_t ask_beyond = 0;  // how many are asked beyond those that are chosen
  double deadline = 0;          // seconds of the clients' clock; none, where 0
  LateUpdates late = Drop{};
  TooFew too_few = TooFew::repeat;
  std::int64_t max_repeats = 10;  // of a round, before the run ends
  friend bool operator==(const Synchronous&, const Synchronous&) = default;
};

// The server changes its model with every so many updates; clients go on with whichever it has when they are free
// (Nguyen et al.: "FedBuff", 2022). A round is such a change. All optional.
struct Buffered {
  std::int64_t replies = 10;
  std::int64_t concurrency = 0;     // clients at work at a time; as many as are chosen, where 0
  double staleness_exponent = 0.5;  // an update of a model that has changed t times since counts (1 + t)^-exponent
  std::int64_t max_staleness = 0;   // older ones are dropped; none is too old, where 0
  friend bool operator==(const Buffered&, const Buffered&) = default;
};

using FederatedRound = std::variant<Synchronous, Buffered>;

// What a client does in a round: so many times over its rows, or so many steps. All optional.
struct LocalTraining {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;  // in place of epochs, where above 0
  friend bool operator==(const LocalTraining&, const LocalTraining&) = default;
};

struct Federated {
  std::int64_t num_clients = 1;
  std::int64_t rounds = 1;
  FederatedAggregation aggregation = FedAvg{};
  ClientSelection client_selection = All{};
  // The rest is optional.
  Inner inner = Local{};
  FederatedRound round = Synchronous{};
  LocalTraining local = {};
  Compression compression = NoCompression{};  // of updates, on their way to the server
  double max_update_norm = 0;                 // a longer change is refused; none is too long, where 0
  std::int64_t threads = 0;                   // on which clients are simulated; as many as cores, where 0
  friend bool operator==(const Federated&, const Federated&) = default;
};

}  // namespace tutti::strategy
