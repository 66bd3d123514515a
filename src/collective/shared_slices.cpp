// Calls of ranks that share memory. Everybody lays its arrays open, reads and writes the others' straight, and leaves
// when all are through: no message is sent.
#include <algorithm>
#include <cstring>

#include "engine.hpp"

namespace tutti::detail {
namespace {

// How much to read between two looks whether the world still stands, of all arrays together; and of one at least.
constexpr std::size_t kBlockBytes = 1024 * 1024;
constexpr std::size_t kLeastBlockBytes = 64 * 1024;

}  // namespace

void CallEngine::perform_shared(const Call& call, Rank root, bool in_slots, Deadline deadline) {
  tell(call, "SharedSlices", 0);
  if (call.descriptor.call == CallKind::barrier) return;
  if (in_slots) return fold_slots(call);
  {
    const SharedBoard::Touch touch(*board_);
    touch_memory(call, root);
  }
  tell(call, "SharedSlices", 1);
  board_->leave(deadline);
}

// Everybody folds everything into its own array. Nobody needs to wait for anybody afterwards: a slot stays as it is
// until its owner has been to one more call, to which we must have come too.
void CallEngine::fold_slots(const Call& call) {
  const Descriptor& descriptor = call.descriptor;
  if (transport_->size() == 1 || descriptor.length == 0) return;
  sources_.clear();
  for (Rank rank : all_ranks(transport_->size())) sources_.push_back(board_->slot(rank).data());
  void* mine = call.destination.data();
  fold_all(descriptor.op, descriptor.type, sources_, {&mine, 1}, descriptor.length);
}

void CallEngine::touch_memory(const Call& call, Rank root) {
  const Descriptor& descriptor = call.descriptor;
  const int size = transport_->size();
  const Rank me = transport_->rank();
  const std::size_t length = descriptor.length;
  const std::size_t width = size_of(descriptor.type);
  const auto source_of = [&](Rank rank) { return board_->entry(rank).source; };
  // Where rank `rank`'s part of an array of one part per rank begins.
  const auto part = [&](Rank rank) { return static_cast<std::size_t>(rank.value) * length * width; };
  const auto copy = [&](std::byte* to, const std::byte* from) {
    if (to == from) return;
    for (std::size_t done = 0; done < length * width; done += kBlockBytes) {
      look_up();
      std::memcpy(to + done, from + done, std::min(kBlockBytes, length * width - done));
    }
  };

  targets_.clear();
  switch (descriptor.call) {
    case CallKind::all_reduce:
    case CallKind::reduce: {
      if (size == 1) return;
      const Slice slice = chunk(length, size, me.value);
      for (Rank rank : all_ranks(size)) {
        if (descriptor.call == CallKind::reduce && rank != root) continue;
        targets_.push_back(board_->entry(rank).destination + slice.first * width);
      }
      return fold_slice(descriptor, slice);
    }
    case CallKind::reduce_scatter:
      targets_.push_back(call.destination.data());
      return fold_slice(descriptor, chunk(length, size, me.value));
    case CallKind::broadcast:
      if (me != root) copy(call.destination.data(), source_of(root));
      return;
    case CallKind::gather:
      if (me != root) return;
      [[fallthrough]];
    case CallKind::all_gather:
      for (Rank rank : all_ranks(size)) copy(call.destination.data() + part(rank), source_of(rank));
      return;
    case CallKind::scatter: return copy(call.destination.data(), source_of(root) + part(me));
    case CallKind::all_to_all:
      for (Rank rank : all_ranks(size)) copy(call.destination.data() + part(rank), source_of(rank) + part(me));
      return;
    case CallKind::barrier: return;
  }
}

// Everybody's `slice`, folded, to all targets, each of which holds that slice from its start.
void CallEngine::fold_slice(const Descriptor& descriptor, Slice slice) {
  const std::size_t width = size_of(descriptor.type);
  const std::size_t block =
      std::max(kBlockBytes / static_cast<std::size_t>(transport_->size()), kLeastBlockBytes) / width;
  for (std::size_t done = 0; done < slice.count; done += block) {
    look_up();
    sources_.clear();
    destinations_.clear();
    for (Rank rank : all_ranks(transport_->size())) {
      sources_.push_back(board_->entry(rank).source + (slice.first + done) * width);
    }
    for (std::byte* target : targets_) destinations_.push_back(target + done * width);
    fold_all(descriptor.op, descriptor.type, sources_, destinations_, std::min(block, slice.count - done));
  }
}

void CallEngine::look_up() const {
  if (board_->aborted()) throw PeerError(*transport_->failure());
}

}  // namespace tutti::detail
