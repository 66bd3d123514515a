// Gradients of logical shards, added up along the balanced binary tree over the shards (split at the largest power of
// two below their number), whoever computed which: the bits depend on the number of shards alone.
//
//   std::vector<ShardPart> parts = {{.first = 0, .count = 2, .data = a}, {.first = 2, .count = 1, .data = b}};
//   fold_shards(DataType::float32, 3, parts, result, n);
//
// A worker that has several shards adds up what it can by itself: two neighbours that meet in the tree
// (`neighbour_in_tree`) become one part.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <tutti/base/data_type.hpp>

namespace tutti {

// The sum over some shards that are a node of the tree. Where `data` is null they contribute nothing.
struct ShardPart {
  int first = 0;
  int count = 1;
  const void* data = nullptr;
};

// Where parts [first, first + count) and what follows them are the two halves of a node: the count of that other half.
std::optional<int> neighbour_in_tree(int shards, int first, int count);

// Whether the balanced tree over the parts, each taken for one, is the tree over the shards: then any fold of the parts
// along their own tree will do.
bool is_tree_over_parts(int shards, std::span<const ShardPart> parts);

// The parts that a worker is left with whose shards are `first` to `first + count - 1`.
std::vector<ShardPart> parts_of_shards(int shards, int first, int count);

// Shards are dealt out to workers in chunks, and a worker keeps a part for each subtree that it has not completed yet:
// how many any of them has at most, that of the shard it computes included.
std::size_t most_parts_at_once(int shards, int workers);

// destination = the sum over all parts, which are sorted, cover all shards, and are nodes of the tree. The destination
// may be one of the parts. False, and nothing written, where none of them has data.
bool fold_shards(DataType type, int shards, std::span<const ShardPart> parts, void* destination, std::size_t length);

}  // namespace tutti
