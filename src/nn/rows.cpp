#include <tutti/nn/rows.hpp>

#include <fmt/format.h>

namespace tutti {

Rows Rows::of_shard(std::int64_t rows, int shards, int shard) {
  return {.first = shard, .stride = shards, .count = shard < rows ? (rows - shard + shards - 1) / shards : 0};
}

at::Tensor Rows::of(const at::Tensor& tensor) const {
  if (stride == 1 && first == 0 && count == row_count(tensor)) return tensor;
  return tensor.slice(0, first, first + count * stride, stride);
}

std::int64_t same_row_count(std::int64_t count, std::int64_t other) {
  if (count != other)
    throw UsageError(fmt::format("the parts of a batch have different numbers of rows: {} and {}", count, other));
  return count;
}

}  // namespace tutti
