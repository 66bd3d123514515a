// What becomes of the updates of a round: pure functions of them.
//
//   const std::vector<ClientUpdate> updates = {{.client = 0, .weight = 600, .values = &trained0, .base = &sent}, ...};
//   const Change change = aggregate(strategy::TrimmedMean{.fraction = 0.2}, updates);
//
// A rule has two halves: this one makes one change of many; OuterOptimizer (coordinate/outer_optimizer.hpp) changes the
// server's model by it. Sums are made in double, in the order of the clients' numbers or of what is summed, so that the
// order of the updates changes no bit of the result; only two updates of one client keep the order they come in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/strategy/federated.hpp>

namespace tutti {

// What a client has learnt. It is values - base, in double, and 0 where both are the same to the bit, be they infinite;
// where there is no base the values are the change.
struct ClientUpdate {
  std::int64_t client = 0;
  double weight = 1;    // rows, where updates are weighted
  double discount = 1;  // of an update that comes late or is of an old model: its weight, or where clients count as one
                        // each its change, is multiplied by it
  const ParameterSet* values = nullptr;
  const ParameterSet* base = nullptr;
};

// By array and element, in the order of the sets.
using Change = std::vector<std::vector<double>>;

// Below, `is_trained` tells by array what is trained and what is a buffer; where it is empty all are trained.

// "FedAvg", as in JSON.
std::string_view rule_name(const strategy::FederatedAggregation& rule);

// How many updates a rule needs at least: 1, 2 byzantine + 3, 4 byzantine + 3; of MultiKrum at least as many as it
// keeps. A UsageError for a rule with numbers that none has, such as a fraction of 0.5 to trim at each end.
std::int64_t least_updates(const strategy::FederatedAggregation& rule);
// A UsageError "Krum: expected at least 11 updates, for 4 that may be hostile, found 7" where there are fewer.
void refuse_too_few(const strategy::FederatedAggregation& rule, std::int64_t updates);

// Whether a rule counts clients by their rows, and can take them one by one (MeanOfUpdates).
bool is_mean(const strategy::FederatedAggregation& rule);

// A UsageError where there are too few, or their layouts differ, or they weigh nothing together. Changes are finite.
// Krum, MultiKrum and Bulyan select by the changes of trained arrays alone, and take all arrays of what they selected.
Change aggregate(const strategy::FederatedAggregation& rule, std::span<const ClientUpdate> updates,
                 const std::vector<bool>& is_trained = {});

// The rules of which is_mean() is true, one update at a time: nothing is kept of an update but its part of the sum.
// The order of the updates is that of the sum. One thread at a time.
class MeanOfUpdates {
 public:
  // `max_norm` as NormClipping's: changes are first made no longer than this; 0 leaves them as they are. Arrays that
  // are not trained do not count for the norm, and are not shortened.
  explicit MeanOfUpdates(double max_norm = 0, std::vector<bool> is_trained = {});

  // A UsageError, and nothing is added, where the layout is another than the first one's, or the weight none.
  void add(const ClientUpdate& update);
  std::int64_t count() const { return count_; }
  // Of all that were added. A UsageError where their weights are 0.
  Change result() const;
  void clear();

 private:
  double max_norm_;
  std::vector<bool> is_trained_;
  std::int64_t count_ = 0;
  double weight_ = 0;
  std::vector<ParameterLayout> layout_;
  Change sum_;
};

// The indices of the updates by Krum's score, the best first; of equal scores the lowest client's. Krum takes the first
// of them, MultiKrum as many as it keeps.
std::vector<std::size_t> krum_order(std::span<const ClientUpdate> updates, std::int64_t byzantine,
                                    const std::vector<bool>& is_trained = {});

// The length of a change over trained arrays, without its discount.
double norm_of(const ClientUpdate& update, const std::vector<bool>& is_trained = {});

}  // namespace tutti
