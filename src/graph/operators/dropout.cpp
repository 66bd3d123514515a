#include <ATen/ATen.h>

#include "operators.hpp"

namespace tutti::detail {

void add_dropout(OperatorRegistry& registry) {
  registry.add(
      {.name = "dropout", .resolve = [](const Options& options, Inputs inputs) {
         expect_float(options, inputs);
         const double p = options.number("p", {.min = 0, .max = 1}, 0.5);
         return Operator{
             .output = inputs[0],
             .compute = [p](const OperatorCall& call) { return at::dropout(call.inputs[0], p, call.is_training); },
             .draws = p > 0};
       }});
}

}  // namespace tutti::detail
