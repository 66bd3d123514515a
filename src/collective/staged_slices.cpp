// Calls of processes that share memory, but not an address space. What a rank gives to others goes through its window
// on the board, block by block; everybody takes what is meant for it out of the others' windows, and folds straight
// from there. While block k is taken, block k+1 is given and the result of block k-1 is spread, so the ranks meet once
// a block. Blocks are small enough to stay in the cache.
//
// A window has room for two blocks to give, and for a result in each. Blocks are counted across calls and lie at the
// parity of their number: a rank may give the first block of a call while others still take the last block of the one
// before.
#include <algorithm>
#include <cstring>

#include <tutti/kernels/copy.hpp>

#include "engine.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t align_down(std::size_t bytes) { return bytes / kAlignment * kAlignment; }

}  // namespace

// One rank's part in one call. Element counts are of what is given to one rank: a lane.
class CallEngine::Staging {
 public:
  Staging(CallEngine& engine, const Call& call)
      : engine_(engine),
        call_(call),
        kind_(call.descriptor.call),
        size_(engine.transport_->size()),
        me_(engine.transport_->rank()),
        width_(size_of(call.descriptor.type)),
        length_(call.descriptor.length) {
    const std::size_t half_bytes = align_down(engine_.board_->window(me_).size() / 2);
    lane_bytes_ = align_down(half_bytes / static_cast<std::size_t>(size_));
    block_ = (gives_the_same_to_all() ? half_bytes : lane_bytes_) / width_;
    const std::size_t longest = is_reduction() ? chunk(length_, size_, 0).count : length_;
    blocks_ = (longest + block_ - 1) / block_;
    // What all ranks bring is about as much as the caches hold, where these say how much that is.
    const std::size_t cache_bytes = largest_cache_bytes();
    is_past_caches_ = cache_bytes > 0 && static_cast<std::size_t>(size_) * length_ * width_ > cache_bytes / 4 * 3;
  }

  std::size_t blocks() const { return blocks_; }

  // A reduction whose result others want.
  bool spreads_result() const { return kind_ == CallKind::all_reduce || kind_ == CallKind::reduce; }

  // Puts a block into this rank's window. Needs no agreement: nobody else writes there.
  void give(std::size_t block) {
    if (!is_giver() || block >= blocks_) return;
    if (gives_the_same_to_all()) return put(half(me_, block), Slice{0, length_}, block);
    for (Rank rank : all_ranks(size_)) {
      if (rank != me_) put(given(me_, rank, block), lane(rank), block);
    }
  }

  // Takes what is meant for this rank out of everybody's windows.
  void take(std::size_t block, Rank root) {
    if (is_reduction()) return fold(block, root);
    switch (kind_) {
      case CallKind::broadcast:
        if (me_ != root) get(0, half(root, block), block);
        return;
      case CallKind::scatter:
        if (me_ == root) return copy_own(lane(me_), 0, block);
        return get(0, given(root, me_, block), block);
      case CallKind::gather:
        if (me_ != root) return;
        [[fallthrough]];
      default:
        for (Rank rank : all_ranks(size_)) {
          const std::size_t to = static_cast<std::size_t>(rank.value) * length_;
          if (rank == me_) {
            copy_own(kind_ == CallKind::all_to_all ? lane(me_) : Slice{0, length_}, to, block);
          } else {
            get(to, kind_ == CallKind::all_to_all ? given(rank, me_, block) : half(rank, block), block);
          }
        }
    }
  }

  // Copies the others' results of a block, where they are wanted.
  void spread(std::size_t block, Rank root) {
    if (kind_ == CallKind::reduce && me_ != root) return;
    for (Rank rank : all_ranks(size_)) {
      const Slice slice = within(lane(rank), block);
      if (rank == me_ || slice.count == 0) continue;
      bring(slice, result(rank, block));
    }
  }

 private:
  bool is_reduction() const { return spreads_result() || kind_ == CallKind::reduce_scatter; }
  bool gives_the_same_to_all() const {
    return kind_ == CallKind::broadcast || kind_ == CallKind::all_gather || kind_ == CallKind::gather;
  }

  bool is_giver() const {
    const Descriptor& descriptor = call_.descriptor;
    if (kind_ == CallKind::barrier) return false;
    if (kind_ != CallKind::broadcast && kind_ != CallKind::scatter) return true;
    if (descriptor.role != BroadcastRole::by_root) return descriptor.role == BroadcastRole::source;
    return descriptor.root == me_.value;
  }

  // What of the source is meant for that rank.
  Slice lane(Rank rank) const {
    if (is_reduction()) return chunk(length_, size_, rank.value);
    return {static_cast<std::size_t>(rank.value) * length_, length_};
  }

  Slice within(Slice whole, std::size_t block) const {
    const std::size_t first = std::min(block * block_, whole.count);
    return {whole.first + first, std::min(block_, whole.count - first)};
  }

  // What a rank gives to another, and in its own place among those, its result.
  std::byte* given(Rank from, Rank to, std::size_t block) const {
    return half(from, block) + static_cast<std::size_t>(to.value) * lane_bytes_;
  }
  std::byte* result(Rank rank, std::size_t block) const { return given(rank, rank, block); }
  std::byte* half(Rank rank, std::size_t block) const {
    const std::span<std::byte> window = engine_.board_->window(rank);
    return window.data() + ((engine_.staged_blocks_ + block) & 1) * (window.size() / 2);
  }

  void put(std::byte* to, Slice whole, std::size_t block) const {
    const Slice slice = within(whole, block);
    if (slice.count > 0) std::memcpy(to, call_.source.data() + slice.first * width_, slice.count * width_);
  }

  // Into the destination, from element `to` on.
  void get(std::size_t to, const std::byte* from, std::size_t block) const {
    const Slice slice = within({to, length_}, block);
    if (slice.count > 0) bring(slice, from);
  }
  void bring(Slice to, const std::byte* from) const {
    std::byte* destination = call_.destination.data() + to.first * width_;
    if (is_past_caches_) return copy_past_caches(destination, from, to.count * width_);
    std::memcpy(destination, from, to.count * width_);
  }
  void copy_own(Slice whole, std::size_t to, std::size_t block) const {
    const std::byte* from = call_.source.data() + within(whole, block).first * width_;
    if (from != call_.destination.data() + within({to, length_}, block).first * width_) get(to, from, block);
  }

  void fold(std::size_t block, Rank root) {
    const Slice slice = within(lane(me_), block);
    if (slice.count == 0) return;
    engine_.sources_.clear();
    engine_.destinations_.clear();
    for (Rank rank : all_ranks(size_)) {
      engine_.sources_.push_back(rank == me_ ? call_.source.data() + slice.first * width_ : given(rank, me_, block));
    }
    const bool wanted_here = kind_ != CallKind::reduce || me_ == root;
    // A reduce-scatter's destination holds this rank's chunk alone.
    const std::size_t first = kind_ == CallKind::reduce_scatter ? slice.first - lane(me_).first : slice.first;
    if (wanted_here) engine_.destinations_.push_back(call_.destination.data() + first * width_);
    const bool wanted_elsewhere = kind_ == CallKind::all_reduce || (kind_ == CallKind::reduce && me_ != root);
    if (wanted_elsewhere) engine_.destinations_.push_back(result(me_, block));
    fold_all(call_.descriptor.op, call_.descriptor.type, engine_.sources_, engine_.destinations_, slice.count);
  }

  CallEngine& engine_;
  const Call& call_;
  const CallKind kind_;
  const int size_;
  const Rank me_;
  const std::size_t width_;
  const std::size_t length_;
  std::size_t lane_bytes_ = 0;  // of a window, for what is given to one rank
  std::size_t block_ = 0;       // elements of a lane
  std::size_t blocks_ = 0;      // the same on all ranks that bring the same
  bool is_past_caches_ = false;
};

void CallEngine::give_first_block(const Call& call) {
  if (transport_->size() > 1) Staging(*this, call).give(0);
}

void CallEngine::perform_staged(const Call& call, Rank root, Deadline deadline) {
  if (call.descriptor.call == CallKind::barrier) return tell(call, "SharedSlices", 0);
  Staging staging(*this, call);
  const std::size_t blocks = staging.blocks();
  const bool spreads = staging.spreads_result() && transport_->size() > 1;
  if (staging.spreads_result() && transport_->size() == 1) return tell(call, "SharedSlices", 0);
  for (std::size_t block = 0; block < blocks; ++block) {
    tell(call, "SharedSlices", static_cast<int>(block));
    const bool last = block + 1 == blocks;
    if (!last) staging.give(block + 1);
    staging.take(block, root);
    if (spreads && block > 0) staging.spread(block - 1, root);
    if (!last || spreads) board_->leave(deadline);
  }
  if (spreads && blocks > 0) {
    tell(call, "SharedSlices", static_cast<int>(blocks));
    staging.spread(blocks - 1, root);
  }
  staged_blocks_ += blocks;
}

}  // namespace tutti::detail
