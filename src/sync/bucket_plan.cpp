#include <tutti/sync/bucket_plan.hpp>

namespace tutti {

std::vector<std::vector<std::size_t>> plan_buckets(std::span<const BucketItem> items,
                                                   std::span<const std::size_t> order, const BucketSizes& sizes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::uint64_t filled = 0;
  for (std::size_t item : order) {
    const bool is_full = !buckets.empty() && filled >= (buckets.size() == 1 ? sizes.first : sizes.size).value;
    if (buckets.empty() || is_full || items[buckets.back().back()].type != items[item].type) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(item);
    filled += items[item].length * size_of(items[item].type);
  }
  return buckets;
}

}  // namespace tutti
