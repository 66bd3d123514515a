// What a compression sends of gradients, before there are any: how many values, and in which messages.
//
//   for (const CompressedMessage& message : compressed_messages(TopK{0.01}, shapes, DataType::float32))
//     bytes += message.bytes;                              // of one worker, in a step
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/data_type.hpp>
#include <tutti/kernels/compression.hpp>
#include <tutti/strategy/compression.hpp>

namespace tutti {

using GradientShape = std::vector<std::int64_t>;

// Of a gradient of so many values.
std::size_t top_k_count(const TopK& top_k, std::size_t length);

// Where a piece's factors stand in the two messages of PowerSgd: P, or the piece itself where it is sent whole, in the
// first, and Q in the second.
struct LowRankPiece {
  bool is_matrix = false;
  LowRankShape shape;
  Slice first;
  Slice second;
};

struct LowRankPlan {
  std::vector<LowRankPiece> pieces;
  std::size_t first_length = 0;
  std::size_t second_length = 0;
};

LowRankPlan low_rank_plan(const PowerSgd& power_sgd, std::span<const GradientShape> shapes);

// What each worker brings to an all-reduce; or, of TopK, to an all-gather.
struct CompressedMessage {
  std::size_t length = 0;  // values, or words
  std::size_t bytes = 0;
  bool is_gathered = false;
};

// Of gradients of float32 or float64. Without a compression it is one message with all of them.
std::vector<CompressedMessage> compressed_messages(const Compression& compression,
                                                   std::span<const GradientShape> shapes, DataType type);

}  // namespace tutti
