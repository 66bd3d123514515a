// What the ranks of one `threads` world share. A rank has a place in it: its doorbell, its mailbox, its seat at the
// board.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/transport/shared_board.hpp>
#include <tutti/transport/transport.hpp>

#include "board.hpp"
#include "doorbell.hpp"

namespace tutti::threads {

struct Place;

// A message on its way. It lies in the receiver's mailbox until both sides have let go of it, and is used again then.
// All but `done` is guarded by that mailbox' mutex; a taken message's payload is the receiver's to read.
class Message final : public Delivery::Payload {
 public:
  void read(const PieceReader& reader) override;
  void release() noexcept override;

  Header header;
  const std::byte* payload = nullptr;
  std::vector<std::byte> copy;  // of a short payload
  std::size_t most_per_piece = 0;
  bool queued = false;
  bool held_by_sender = false;
  bool held_by_receiver = false;
  Place* sender = nullptr;
  Place* receiver = nullptr;
  Message* next = nullptr;
  std::uint64_t id = 0;
  std::atomic<bool> done{false};  // the payload is not needed any more
};

// First in, first out, without allocating.
struct MessageQueue {
  Message* first = nullptr;
  Message* last = nullptr;

  void append(Message* message);
  // The oldest of that tag, taken out.
  Message* take(Tag tag);
  void remove(Message* message);
};

struct Mailbox {
  std::mutex mutex;
  std::vector<MessageQueue> from;  // by sender
  std::deque<Message> messages;    // all there are; a deque, because it never moves them
  std::vector<Message*> free;
  std::atomic<std::uint64_t> arrivals{0};

  // Call these with the mutex held.
  Message& obtain();
  void put_back_if_unheld(Message& message);
};

struct alignas(128) Place {
  Doorbell doorbell;
  Mailbox mailbox;
  Seat seat;
  std::array<std::array<std::byte, SharedBoard::kSlotBytes>, 2> slots;  // by parity of the call
  std::atomic<int> waiting_for{-1};
  std::atomic<bool> gone{false};
  std::string why_gone;  // guarded by the world's mutex
};

struct World;

// Members of a world on their way into a new one. Those who disagree share one list of whom they still await: each of
// them is told once, and then it is over.
struct Regrouping {
  enum class State { gathering, complete, failed };

  bool has_joined(Rank rank) const;

  std::vector<Rank> members;
  std::vector<Rank> joined;
  std::shared_ptr<std::vector<Rank>> still_to_tell;
  std::shared_ptr<World> result;
  Failure failure;
  std::atomic<State> state{State::gathering};
};

struct World {
  World(int ranks, bool with_shared_memory, Patience ranks_patience);

  int size() const { return static_cast<int>(places.size()); }
  Place& place(Rank rank) { return places[static_cast<std::size_t>(rank.value)]; }
  const Place& place(Rank rank) const { return places[static_cast<std::size_t>(rank.value)]; }

  // What the board asks for.
  static constexpr bool kAddressable = true;
  Seat& seat(Rank rank) { return place(rank).seat; }
  std::byte* slot(Rank rank, std::uint64_t parity) { return place(rank).slots[parity].data(); }
  std::span<std::byte> window(Rank) { return {}; }
  bool is_aborted() const noexcept { return aborted.load(); }
  bool is_gone(Rank rank) const { return place(rank).gone.load(); }
  void ring(Rank rank) noexcept { place(rank).doorbell.ring(); }
  template <typename Ready>
  bool wait(Rank rank, Ready&& ready, Deadline deadline) {
    return place(rank).doorbell.wait(ready, deadline, patience);
  }

  void ring_all() noexcept;
  void abort(Failure why) noexcept;
  [[noreturn]] void throw_failure() const;
  void depart(Rank rank, std::string_view why, bool from_descendants) noexcept;
  Failure lost(const std::vector<Rank>& ranks) const;
  std::shared_ptr<World> regroup(Rank rank, const std::vector<Rank>& members, Deadline deadline);
  // With the mutex held: the regrouping that `rank` takes part in by bringing that list.
  std::shared_ptr<Regrouping> join(Rank rank, const std::vector<Rank>& members);
  void look_for_disagreement(Regrouping& mine, Rank rank);

  const bool shared_memory;
  const Patience patience;
  std::deque<Place> places;

  std::atomic<bool> aborted{false};
  mutable std::mutex mutex;  // for what follows, and the departed ranks' reasons
  std::optional<Failure> failure;
  std::vector<std::shared_ptr<Regrouping>> regroupings;

  struct Descendant {
    std::weak_ptr<World> world;
    std::vector<Rank> members;
  };
  std::vector<Descendant> descendants;
};

}  // namespace tutti::threads
