// A run's optimizer as torch's options.
//
//   std::unique_ptr<torch::optim::OptimizerOptions> options = torch_options(run.optimizer);
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>
#include <tutti/kernels/optimizer.hpp>

namespace tutti {

std::unique_ptr<torch::optim::OptimizerOptions> torch_options(const OptimizerRule& rule);

}  // namespace tutti
