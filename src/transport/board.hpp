// The shared board, for any world whose ranks see one piece of memory: an address space, or a segment that processes
// of one host have all mapped.
//
// `World` tells what it has: size(), seat(rank), slot(rank, parity), window(rank), kAddressable; what became of it:
// is_aborted(), throw_failure(), is_gone(rank), lost(ranks); and how its ranks wake each other: ring(rank), and
// wait(rank, ready, deadline), which returns false where the deadline passed.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <tutti/transport/shared_board.hpp>

namespace tutti {

// A rank's seat at the board. `entered` and `left` count calls.
struct alignas(128) Seat {
  std::atomic<std::uint64_t> entered{0};
  alignas(128) std::atomic<std::uint64_t> left{0};
  std::atomic<bool> touching{false};
  // By parity of the call: a rank can be one call ahead of a peer that still reads, and no more.
  alignas(128) std::array<BoardEntry, 2> entries;
};

template <typename World>
class Board final : public SharedBoard {
 public:
  Board(World& world, Rank rank) : world_(world), rank_(rank) {}

  bool addressable() const noexcept override { return World::kAddressable; }

  std::span<std::byte> next_slot() override { return {world_.slot(rank_, (call_ + 1) & 1), kSlotBytes}; }
  std::span<const std::byte> slot(Rank peer) const override { return {world_.slot(peer, call_ & 1), kSlotBytes}; }
  std::span<std::byte> window(Rank peer) override { return world_.window(peer); }
  const BoardEntry& entry(Rank peer) const override { return world_.seat(peer).entries[call_ & 1]; }

  void enter(const BoardEntry& entry, Deadline deadline) override {
    Seat& mine = world_.seat(rank_);
    ++call_;
    mine.entries[call_ & 1] = entry;
    mine.entered.store(call_);
    ring_peers();
    wait_for_all(
        [](const Seat& seat) -> const auto& { return seat.entered; }, call_, "did not come", deadline);
    // All have come, but some may have given up on us since.
    if (world_.is_aborted()) world_.throw_failure();
  }

  void leave(Deadline deadline) override {
    world_.seat(rank_).left.store(++left_);
    ring_peers();
    wait_for_all(
        [](const Seat& seat) -> const auto& { return seat.left; }, left_, "did not finish", deadline);
  }

  void give_up() noexcept override {
    for (Rank peer : all_ranks(world_.size())) {
      const auto through = [&seat = world_.seat(peer)] { return !seat.touching.load(); };
      while (!world_.wait(rank_, through, Deadline::after(std::chrono::seconds(1)))) {
      }
    }
  }

  bool aborted() const noexcept override { return world_.is_aborted(); }

 private:
  // Whoever gives up aborts first and looks who touches afterwards; we do it the other way round. So either we see the
  // abort, or it sees us.
  void begin_touch() override {
    world_.seat(rank_).touching.store(true);
    if (!world_.is_aborted()) return;
    end_touch();
    world_.throw_failure();
  }

  void end_touch() noexcept override {
    world_.seat(rank_).touching.store(false);
    if (world_.is_aborted()) ring_peers();
  }

  void ring_peers() noexcept {
    for (Rank peer : all_ranks(world_.size())) {
      if (peer != rank_) world_.ring(peer);
    }
  }

  // Until everybody's counter has reached `count`.
  template <typename Counter>
  void wait_for_all(Counter counter, std::uint64_t count, std::string_view what, Deadline deadline) {
    int next = 0;  // ranks below it have come
    const auto reached = [&] {
      while (next < world_.size() && counter(world_.seat(Rank{next})).load() >= count) ++next;
      return next == world_.size();
    };
    const auto missing = [&] {
      std::vector<Rank> ranks;
      for (Rank peer : all_ranks(world_.size())) {
        if (counter(world_.seat(peer)).load() < count) ranks.push_back(peer);
      }
      return ranks;
    };
    const auto somebody_lost = [&] {
      for (Rank peer : all_ranks(world_.size())) {
        // In this order: what a rank did before it went is seen.
        if (world_.is_gone(peer) && counter(world_.seat(peer)).load() < count) return true;
      }
      return false;
    };
    const auto ready = [&] { return reached() || world_.is_aborted() || somebody_lost(); };

    bool in_time = true;
    std::vector<Rank> late;
    // A rank may have come while it was on its way out: then nobody is missing who is gone, and we wait on.
    while (in_time && late.empty()) {
      in_time = world_.wait(rank_, ready, deadline);
      if (reached()) return;
      if (world_.is_aborted()) world_.throw_failure();
      late = missing();
      if (in_time) std::erase_if(late, [&](Rank peer) { return !world_.is_gone(peer); });
    }
    if (in_time) throw PeerError(world_.lost(late));
    throw PeerError({FailureKind::late, late, fmt::format("{} {} in time", to_string(late), what)});
  }

  World& world_;
  const Rank rank_;
  std::uint64_t call_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace tutti
