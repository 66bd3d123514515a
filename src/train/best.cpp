#include <tutti/train/best.hpp>

#include <cmath>

namespace tutti {

bool BestSoFar::take(double value, std::int64_t step) {
  const double change = options_.higher_is_better ? options_.min_change : -options_.min_change;
  const bool is_finite = std::isfinite(value);
  const bool is_progress = is_finite && (!state_.mark || is_better(value, *state_.mark + change));
  if (is_progress) state_.mark = value;
  state_.evaluations_since_progress = is_progress ? 0 : state_.evaluations_since_progress + 1;
  if (!is_finite || (state_.value && !is_better(value, *state_.value))) return false;
  state_.value = value;
  state_.step = step;
  return true;
}

}  // namespace tutti
