// Which evaluation of a run was the best, and whether it still gets better.
//
//   BestSoFar best({.higher_is_better = true, .min_change = 0.001});
//   if (best.take(accuracy, step)) ...            // the best up to now
//   if (best.evaluations_since_progress() >= patience) stop();
//
// A value: its state goes into checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tutti {

struct BestOptions {
  bool higher_is_better = true;
  double min_change = 0;  // better by no more than this is no progress
};

struct BestState {
  std::string of = {};  // what is compared: "test accuracy"
  std::optional<double> value = {};
  std::int64_t step = 0;            // of the best
  std::optional<double> mark = {};  // what the next one must exceed to be progress
  std::int64_t evaluations_since_progress = 0;
  friend bool operator==(const BestState&, const BestState&) = default;
};

class BestSoFar {
 public:
  explicit BestSoFar(BestOptions options, BestState state = {}) : options_(options), state_(std::move(state)) {}

  // True where it is the best up to now. A number that is not finite never is.
  bool take(double value, std::int64_t step);

  std::int64_t evaluations_since_progress() const { return state_.evaluations_since_progress; }
  const BestState& state() const { return state_; }

 private:
  bool is_better(double value, double than) const { return options_.higher_is_better ? value > than : value < than; }

  BestOptions options_;
  BestState state_;
};

}  // namespace tutti
