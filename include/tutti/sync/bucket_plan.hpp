// Which gradients are sent together.
//
//   auto buckets = plan_buckets(gradients, order, {.first = Bytes{1 << 20}, .size = Bytes{4 << 20}});
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <tutti/base/bytes.hpp>
#include <tutti/base/data_type.hpp>

namespace tutti {

struct BucketItem {
  std::size_t length = 0;
  DataType type = DataType::float32;
};

struct BucketSizes {
  Bytes first;
  Bytes size;
};

// The items of each bucket, by their numbers: contiguous runs of `order`, which names each item once. A bucket is full
// once it has the size set for it, so an item is never cut, and holds one type only.
std::vector<std::vector<std::size_t>> plan_buckets(std::span<const BucketItem> items,
                                                   std::span<const std::size_t> order, const BucketSizes& sizes);

}  // namespace tutti
