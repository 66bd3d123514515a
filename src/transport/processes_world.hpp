// A world of processes: what this process knows of it. Its ranks are numbers of their own; `members` tells which
// processes of the mesh they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/transport/shared_board.hpp>
#include <tutti/transport/transport.hpp>

#include "board.hpp"
#include "mesh.hpp"
#include "segment.hpp"

namespace tutti::processes {

// A message that has come, or was announced. It lies in its world's mailbox until it is taken, and is used again when
// its Delivery is gone. Guarded by the mesh's mutex.
struct Incoming final : public Delivery::Payload {
  explicit Incoming(World& its_world) : world(its_world) {}

  void read(const PieceReader& reader) override;
  void release() noexcept override;

  // Puts a piece aside that nobody reads where it lies.
  void keep(const Frame& frame);

  World& world;
  Header header;
  Rank from = {};
  std::uint64_t id = 0;
  bool eager = false;
  bool asked_for = false;
  bool being_read = false;
  bool taken_back = false;
  std::vector<std::byte> data;  // the payload, or as much of it as came before anybody read it
  std::uint64_t arrived = 0;    // bytes in `data`
  Deadline deadline = Deadline::after(Duration::zero());
};

// Members of a world that form a new one: the k-th time that they bring this list.
struct Round {
  std::vector<Rank> members;
  std::uint64_t number = 0;

  friend auto operator<=>(const Round&, const Round&) = default;
};

class World {
 public:
  World(std::shared_ptr<Mesh> mesh, std::uint64_t id, std::vector<int> members);

  std::uint64_t id() const { return id_; }
  int size() const { return static_cast<int>(members_.size()); }
  Rank rank() const { return rank_; }
  Mesh& mesh() { return *mesh_; }
  int process(Rank rank) const { return members_[static_cast<std::size_t>(rank.value)]; }

  // What a Transport does (processes.cpp turns this into one).
  SendTicket start_send(Rank to, Tag tag, std::span<const std::byte> payload);
  void finish_send(SendTicket ticket, Deadline deadline);
  void cancel_send(SendTicket ticket) noexcept;
  Delivery receive(Rank from, Tag tag, Deadline deadline);
  void expect(Rank from, Tag tag);
  void abort(Failure failure) noexcept;
  std::optional<Failure> failure();
  void depart(std::string_view why, bool from_descendants) noexcept;
  Rank held_up_by(Rank peer);
  // The members come to a new world, whose board is still to be set up.
  std::shared_ptr<World> regroup(const std::vector<Rank>& members, Deadline deadline);

  // All members at once: sets up the board where they all share memory.
  void set_up_board(Deadline deadline);
  // It is ready for its user. Until then only what this process notices itself breaks it: a member that was ready
  // sooner may have broken it already, which is for whoever uses it to hear.
  void be_ready();
  bool has_board() const { return board_memory_.has_value(); }

  // What the board asks for.
  static constexpr bool kAddressable = false;
  Seat& seat(Rank rank);
  std::byte* slot(Rank rank, std::uint64_t parity);
  std::span<std::byte> window(Rank rank);
  bool is_aborted() const noexcept { return aborted_.load(); }
  bool is_gone(Rank rank) const { return places_[static_cast<std::size_t>(rank.value)].gone.load(); }
  [[noreturn]] void throw_failure();
  Failure lost(const std::vector<Rank>& ranks);
  void ring(Rank rank) noexcept { mesh_->ring(process(rank)); }
  template <typename Ready>
  bool wait(Rank, Ready&& ready, Deadline deadline) {
    return mesh_->wait_unlocked(ready, deadline);
  }

  // This process has nothing more to do with it.
  void close() noexcept;

  // With the mesh's mutex held.
  void handle(int process, const Frame& frame);
  void lose(int process, const std::string& why, bool clean);

 private:
  friend struct Incoming;

  struct Place {
    std::deque<Incoming*> queue;  // what came from there and was not received yet, the oldest first
    std::vector<Tag> expected;    // what is to be sent there without being asked for
    std::atomic<bool> gone{false};
    std::string why_gone;
    // Regrouping: how often it brought which list, and what it brought last.
    std::map<std::vector<Rank>, std::uint64_t> brought;
    std::optional<Round> last_brought;
  };

  Place& place(Rank rank) { return places_[static_cast<std::size_t>(rank.value)]; }
  std::optional<Rank> rank_of(int process) const;
  Incoming& obtain();
  Incoming* take(Rank from, Tag tag);
  void post_to_all(const FrameHead& head, std::span<const std::byte> body) noexcept;
  void break_up(Failure failure);
  Failure lost_with_lock(const std::vector<Rank>& ranks);
  template <typename Ready>
  bool wait_for(std::unique_lock<std::mutex>& lock, Rank peer, Ready&& ready, Deadline deadline);

  bool has_brought(Rank rank, const Round& round);
  bool still_waits_with(Rank rank, const Round& round);
  bool knows_what_came_before(const Round& round);
  void look_for_disagreement(const Round& mine);
  void refuse(const Failure& failure, const std::vector<Round>& rounds);

  const std::shared_ptr<Mesh> mesh_;
  const std::uint64_t id_;
  const std::vector<int> members_;
  Rank rank_;
  std::deque<Place> places_;
  std::deque<Incoming> messages_;
  std::vector<Incoming*> free_;
  std::atomic<bool> aborted_{false};
  std::optional<Failure> failure_;
  bool is_ready_ = false;
  std::optional<Failure> failed_before_;  // what others said before it was ready
  std::atomic<int> waiting_for_{-1};
  bool departed_ = false;
  std::vector<std::weak_ptr<World>> descendants_;

  // Rounds that ended in a failure, and that members who come to them later are told of.
  std::map<Round, Failure> refused_;
  std::map<std::vector<Rank>, std::uint64_t> told_;  // how many rounds of a list this rank has been through

  std::optional<Segment> board_memory_;
  std::size_t window_bytes_ = 0;  // of each rank, there
};

}  // namespace tutti::processes
