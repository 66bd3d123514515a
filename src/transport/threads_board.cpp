#include <fmt/format.h>

#include "threads_world.hpp"

namespace tutti::threads {

std::span<std::byte> Board::next_slot() {
  if (!seat_.slots[0]) {
    for (auto& slot : seat_.slots) slot = std::make_unique<std::byte[]>(kSlotBytes);
  }
  return {seat_.slots[(call_ + 1) & 1].get(), kSlotBytes};
}

const BoardEntry& Board::entry(Rank peer) const { return world_.place(peer).seat.entries[call_ & 1]; }

std::span<const std::byte> Board::slot(Rank peer) const {
  return {world_.place(peer).seat.slots[call_ & 1].get(), kSlotBytes};
}

void Board::ring_peers() noexcept {
  for (Rank peer : all_ranks(world_.size())) {
    if (peer != rank_) world_.place(peer).doorbell.ring();
  }
}

void Board::enter(const BoardEntry& entry, Deadline deadline) {
  ++call_;
  seat_.entries[call_ & 1] = entry;
  seat_.entered.store(call_);
  ring_peers();
  wait_for_all(
      [](const Seat& seat) -> const auto& { return seat.entered; }, "did not come", deadline);
  // All have come, but some may have given up on us since.
  if (world_.aborted.load()) world_.throw_failure();
}

// Whoever gives up aborts first and looks who touches afterwards; we do it the other way round. So either we see the
// abort, or it sees us.
void Board::begin_touch() {
  seat_.touching.store(true);
  if (!world_.aborted.load()) return;
  end_touch();
  world_.throw_failure();
}

void Board::end_touch() noexcept {
  seat_.touching.store(false);
  if (world_.aborted.load()) ring_peers();
}

void Board::leave(Deadline deadline) {
  seat_.left.store(call_);
  ring_peers();
  wait_for_all(
      [](const Seat& seat) -> const auto& { return seat.left; }, "did not finish", deadline);
}

void Board::give_up() noexcept {
  for (Rank peer : all_ranks(world_.size())) {
    const auto through = [&seat = world_.place(peer).seat] { return !seat.touching.load(); };
    while (!world_.place(rank_).doorbell.wait(through, Deadline::after(std::chrono::seconds(1)), world_.patience)) {
    }
  }
}

template <typename Counter>
void Board::wait_for_all(Counter counter, std::string_view what, Deadline deadline) {
  int next = 0;  // ranks below it have come
  const auto reached = [&] {
    while (next < world_.size() && counter(world_.place(Rank{next}).seat).load() >= call_) ++next;
    return next == world_.size();
  };
  const auto missing = [&] {
    std::vector<Rank> ranks;
    for (Rank peer : all_ranks(world_.size())) {
      if (counter(world_.place(peer).seat).load() < call_) ranks.push_back(peer);
    }
    return ranks;
  };
  const auto somebody_lost = [&] {
    for (Rank peer : all_ranks(world_.size())) {
      const Place& place = world_.place(peer);
      // In this order: what a rank did before it went is seen.
      if (place.gone.load() && counter(place.seat).load() < call_) return true;
    }
    return false;
  };
  const auto ready = [&] { return reached() || world_.aborted.load() || somebody_lost(); };

  bool in_time = true;
  std::vector<Rank> late;
  // A rank may have come while it was on its way out: then nobody is missing who is gone, and we wait on.
  while (in_time && late.empty()) {
    in_time = world_.place(rank_).doorbell.wait(ready, deadline, world_.patience);
    if (reached()) return;
    if (world_.aborted.load()) world_.throw_failure();
    late = missing();
    if (in_time) std::erase_if(late, [&](Rank peer) { return !world_.place(peer).gone.load(); });
  }
  if (in_time) throw PeerError(world_.lost(late));
  throw PeerError({FailureKind::late, late, fmt::format("{} {} in time", to_string(late), what)});
}

}  // namespace tutti::threads
