// Which elements of several arrays each worker takes: in pieces that fit into its cache, and about as many as the
// others.
//
//   SlicePlan plan(lengths, 2);                                      // of each array
//   for (const SlicePiece& piece : plan.share_of(worker)) sum(arrays[piece.array], piece.slice);
//
// Where the pieces are cut does not depend on the workers, so what is added up piece by piece has the same bits for any
// number of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <tutti/base/chunk.hpp>

namespace tutti {

struct SlicePiece {
  std::size_t array = 0;
  Slice slice;
  std::size_t index = 0;  // among all pieces

  friend bool operator==(const SlicePiece&, const SlicePiece&) = default;
};

class SlicePlan {
 public:
  // The longest piece.
  static constexpr std::size_t kLongest = 8192;

  // Less than one worker is a UsageError.
  SlicePlan(std::span<const std::size_t> lengths, int workers);

  // All of them: array by array, each from its beginning to its end.
  std::span<const SlicePiece> pieces() const { return pieces_; }
  // Those of one worker, next to each other.
  std::span<const SlicePiece> share_of(int worker) const;

 private:
  std::vector<SlicePiece> pieces_;
  std::vector<std::size_t> begins_;  // where the share of each worker begins, and the last one's ends
};

}  // namespace tutti
