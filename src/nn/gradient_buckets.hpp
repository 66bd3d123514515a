// Where the gradients of a module lie that are sent together.
//
//   GradientBuckets buckets(parameters, order, {.first = options.first_bucket_size, .size = options.bucket_size});
//   buckets.place_of(parameter).view           // the gradient of a parameter, laid out as it is, in its bucket's
//   memory
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>
#include <tutti/base/array.hpp>
#include <tutti/sync/bucket_plan.hpp>
#include <tutti/sync/gradient_buffers.hpp>

#include "module_parameters.hpp"

namespace tutti::detail {

// The memory of a gradient from element `first` on, laid out as its parameter. No view to autograd: torch's zero_grad()
// cannot detach one.
torch::Tensor part_of(const torch::Tensor& memory, std::int64_t first, const torch::Tensor& like);

struct GradientBucket {
  std::vector<std::size_t> parameters;
  torch::Tensor memory;       // of all of them
  GradientBuffers gradients;  // the same, by name
};

struct GradientPlace {
  std::size_t bucket = 0;
  Array array;
  torch::Tensor view;
};

class GradientBuckets {
 public:
  GradientBuckets() = default;
  // `order` has each parameter once.
  GradientBuckets(const std::vector<ModuleParameter>& parameters, const std::vector<std::size_t>& order,
                  const BucketSizes& sizes);

  std::size_t size() const { return buckets_.size(); }
  GradientBucket& operator[](std::size_t index) { return buckets_[index]; }
  const GradientPlace& place_of(std::size_t parameter) const { return places_[parameter]; }

 private:
  std::vector<GradientBucket> buckets_;
  std::vector<GradientPlace> places_;
};

}  // namespace tutti::detail
