// What becomes of gradients that reach a model, one set at a time: which way they change it, and what is made of those
// that are of an older version.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/main_model.hpp>

namespace tutti {

enum class GradientChangeMode { descent, ascent };

// Where other gradients have changed the model t times since the parameters that these are of.
struct StalenessOptions {
  // The learning rate is multiplied by (1 + t)^-exponent; at 0 it stays as it is, at 1 it is divided by 1 + t.
  double rate_exponent = 0;
  // Adds lambda g g (now - then) to a gradient g, element by element: what it would have become, as far as g g tells
  // how it changes (Zheng et al.: "Asynchronous stochastic gradient descent with delay compensation", 2017). Halves are
  // computed in float, and integers stay as they are. None, where 0.
  double delay_compensation = 0;
  friend bool operator==(const StalenessOptions&, const StalenessOptions&) = default;
};

// A UsageError for numbers that cannot be.
void validate(const StalenessOptions& options);

// Of which parameters gradients are, and what they count for.
struct GradientOrigin {
  // As it was handed out. Gradients of nothing in particular are taken for those of the newest, with a staleness of 0.
  ModelSnapshot base = {};
  double weight = 1;       // gradients are multiplied by it
  double rate_factor = 1;  // and the learning rate by this, as a schedule may say
};

// How many gradients were applied, by their staleness. Those of nothing in particular are counted at 0.
using StalenessCounts = std::map<std::int64_t, std::int64_t>;

}  // namespace tutti
