// The weighted mean of several workers' gradients, whose bits depend on nothing but these and their order.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "gradient_applier.hpp"

namespace tutti::detail {

// One thread at a time. Each set times its weight, divided by the largest of them, is rounded to the type of its array;
// these are folded along the balanced tree of all folds (kernels/fold.hpp), and the sum is divided by that of the
// weights as the rule scales gradients.
class GradientMean {
 public:
  // At the largest of their rates. Nothing where they weigh nothing together. What is returned holds until the next
  // call. An Error where their sum is not finite.
  std::optional<GoodGradients> of(std::vector<GoodGradients> gradients);

 private:
  std::shared_ptr<ParameterSet> sum_;
};

}  // namespace tutti::detail
