#include "gradient_buckets.hpp"

#include <cstdint>
#include <utility>

#include "kernel_optimizer.hpp"

namespace tutti::detail {

torch::Tensor part_of(const torch::Tensor& memory, std::int64_t first, const torch::Tensor& like) {
  return torch::empty({0}, memory.options()).set_(memory.storage(), first, like.sizes(), like.strides());
}

GradientBuckets::GradientBuckets(const std::vector<ModuleParameter>& parameters, const std::vector<std::size_t>& order,
                                 const BucketSizes& sizes)
    : places_(parameters.size()) {
  std::vector<BucketItem> items;
  for (const ModuleParameter& one : parameters) {
    items.push_back({static_cast<std::size_t>(one.tensor().numel()), data_type_of_parameter(one.name(), one.tensor())});
  }
  for (std::vector<std::size_t>& its : plan_buckets(items, order, sizes)) {
    std::vector<NamedShape> shapes;
    std::int64_t length = 0;
    for (std::size_t i : its) {
      shapes.push_back({parameters[i].name(), parameters[i].tensor().sizes().vec()});
      length += parameters[i].tensor().numel();
    }
    torch::Tensor memory = torch::zeros({length}, parameters[its.front()].tensor().options().requires_grad(false));
    const Array all(memory.data_ptr(), static_cast<std::size_t>(length), items[its.front()].type);
    buckets_.push_back({std::move(its), std::move(memory), GradientBuffers(std::move(shapes), all)});
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const GradientBucket& bucket = buckets_[b];
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const torch::Tensor& tensor = parameters[bucket.parameters[k]].tensor();
      const auto first = static_cast<std::int64_t>(bucket.gradients.pieces()[k].slice.first);
      places_[bucket.parameters[k]] = {b, bucket.gradients[k], part_of(bucket.memory, first, tensor)};
    }
  }
}

}  // namespace tutti::detail
