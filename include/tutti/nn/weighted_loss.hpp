// The mean loss of some rows, and what it counts for beside the losses of other rows.
//
//   return tutti::WeightedLoss{sum / tokens, tokens};
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace tutti {

struct WeightedLoss {
  WeightedLoss(at::Tensor its_loss) : loss(std::move(its_loss)) {}  // NOLINT(google-explicit-constructor)
  WeightedLoss(at::Tensor its_loss, double its_weight) : loss(std::move(its_loss)), weight(its_weight) {}
  WeightedLoss(at::Tensor its_loss, const at::Tensor& its_weight);

  at::Tensor loss;                    // one number
  std::optional<double> weight = {};  // as many as there are rows, where not given
};

}  // namespace tutti
