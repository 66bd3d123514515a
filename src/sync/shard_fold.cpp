#include <tutti/sync/shard_fold.hpp>

#include <algorithm>
#include <bit>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/reduce_op.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti {
namespace {

int left_half(int count) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1))); }

// The parts of one node of the tree: those of its left half, and those of its right.
std::size_t parts_of_left_half(std::span<const ShardPart> parts, int count) {
  const int end = parts.front().first + left_half(count);
  return static_cast<std::size_t>(
      std::ranges::find_if(parts, [&](const ShardPart& part) { return part.first >= end; }) - parts.begin());
}

bool is_tree(std::span<const ShardPart> parts, int count) {
  if (parts.size() == 1) return true;
  const std::size_t left = parts_of_left_half(parts, count);
  if (left != static_cast<std::size_t>(left_half(static_cast<int>(parts.size())))) return false;
  return is_tree(parts.first(left), left_half(count)) && is_tree(parts.subspan(left), count - left_half(count));
}

// For one block: leaves are read where they are, nodes written to scratch.
class BlockFold {
 public:
  BlockFold(DataType type, std::size_t most) : type_(type), most_(most * size_of(type)) {}

  // Null where nothing contributes.
  const std::byte* fold_node(std::span<const ShardPart> parts, int count, std::size_t offset, std::size_t length,
                             std::size_t depth) {
    if (parts.size() == 1) {
      const auto* data = static_cast<const std::byte*>(parts.front().data);
      return data == nullptr ? nullptr : data + offset * size_of(type_);
    }
    const std::size_t left_parts = parts_of_left_half(parts, count);
    const std::byte* left = fold_node(parts.first(left_parts), left_half(count), offset, length, 2 * depth + 1);
    const std::byte* right =
        fold_node(parts.subspan(left_parts), count - left_half(count), offset, length, 2 * depth + 2);
    if (left == nullptr || right == nullptr) return left == nullptr ? right : left;
    if (scratch_.size() <= depth) scratch_.resize(depth + 1);
    scratch_[depth].resize(most_);
    fold(ReduceOp::sum, type_, scratch_[depth].data(), left, right, length);
    return scratch_[depth].data();
  }

 private:
  const DataType type_;
  const std::size_t most_;
  std::vector<std::vector<std::byte>> scratch_;  // by place in the tree
};

// The next shard becomes a part, and one with its neighbours as far as they meet in the tree.
void add_shard(int shards, int shard, std::vector<ShardPart>& parts) {
  parts.push_back({.first = shard});
  while (parts.size() > 1) {
    ShardPart& left = parts[parts.size() - 2];
    if (neighbour_in_tree(shards, left.first, left.count) != parts.back().count) break;
    left.count += parts.back().count;
    parts.pop_back();
  }
}

}  // namespace

std::optional<int> neighbour_in_tree(int shards, int first, int count) {
  // Down from the root to the node whose left half this is.
  int node_first = 0;
  int node_count = shards;
  while (node_count > 1) {
    const int left = left_half(node_count);
    if (node_first == first && left == count) return node_count - left;
    if (first < node_first + left) {
      node_count = left;
    } else {
      node_first += left;
      node_count -= left;
    }
  }
  return std::nullopt;
}

bool is_tree_over_parts(int shards, std::span<const ShardPart> parts) { return is_tree(parts, shards); }

std::vector<ShardPart> parts_of_shards(int shards, int first, int count) {
  std::vector<ShardPart> parts;
  for (int shard = first; shard < first + count; ++shard) add_shard(shards, shard, parts);
  return parts;
}

std::size_t most_parts_at_once(int shards, int workers) {
  std::size_t most = 0;
  for (int worker = 0; worker < workers; ++worker) {
    const Slice own = chunk(static_cast<std::size_t>(shards), workers, worker);
    std::vector<ShardPart> parts;
    for (std::size_t shard = own.first; shard < own.end(); ++shard) {
      most = std::max(most, parts.size() + 1);
      add_shard(shards, static_cast<int>(shard), parts);
    }
  }
  return most;
}

bool fold_shards(DataType type, int shards, std::span<const ShardPart> parts, void* destination, std::size_t length) {
  const bool all_contribute = std::ranges::all_of(parts, [](const ShardPart& part) { return part.data != nullptr; });
  if (all_contribute && is_tree_over_parts(shards, parts)) {
    if (parts.size() == 1 && parts.front().data == destination) return true;
    std::vector<const void*> sources;
    for (const ShardPart& part : parts) sources.push_back(part.data);
    fold_all(ReduceOp::sum, type, sources, {&destination, 1}, length);
    return true;
  }
  if (std::ranges::none_of(parts, [](const ShardPart& part) { return part.data != nullptr; })) return false;
  constexpr std::size_t kBlock = 4096;
  BlockFold block(type, kBlock);
  for (std::size_t done = 0; done < length; done += kBlock) {
    const std::size_t count = std::min(kBlock, length - done);
    const std::byte* sum = block.fold_node(parts, shards, done, count, 0);
    std::byte* to = static_cast<std::byte*>(destination) + done * size_of(type);
    if (to != sum) std::copy_n(sum, count * size_of(type), to);
  }
  return true;
}

}  // namespace tutti
