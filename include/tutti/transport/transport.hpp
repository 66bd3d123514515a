// Moves bytes between ranks. Every backend implements this interface and joins tests/contract.
//
//   SendTicket ticket = transport.start_send(Rank{1}, Tag{7}, payload);      // returns at once
//   Delivery delivery = transport.receive(Rank{1}, Tag{7}, Deadline::after(30s));
//   buffer.resize(delivery.header().length);                                 // never a guessed size
//   delivery.copy_to(buffer);
//   transport.finish_send(ticket, Deadline::after(30s));                     // now the payload is ours again
//
// A world is the set of ranks that can reach each other through one transport. It is healthy until somebody aborts it;
// then every wait in it, on every rank, ends at once with the same failure.
//
// Threads: one rank's object may be used by several threads at once (a caller's and a progress thread's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>

namespace tutti {

class EngineCalls;
class SharedBoard;

// How near a peer is.
enum class Locality : std::uint8_t { same_address_space, same_host, remote };

std::string_view to_string(Locality locality);

// What goes ahead of every payload.
struct Header {
  Tag tag = {};
  std::uint64_t length = 0;  // bytes of payload that follow, exactly
};

// A message of up to this length, or to itself, is copied when it is sent: its sender never waits for the receiver.
inline constexpr std::size_t kEagerBytes = 4096;

// What the reason of a rank begins with that has left because of others.
inline constexpr std::string_view kGaveUp = "gave up: ";

// A message that has been started. Belongs to the transport that gave it out.
struct SendTicket {
  Rank to = {};
  std::uint64_t id = 0;
};

// Gets one piece of a payload, which begins `offset` bytes into it.
using PieceReader = std::function<void(std::size_t offset, std::span<const std::byte> piece)>;

// A message that has come in: its header, and the payload wherever the backend has it, which may be still on its way.
// Hold it no longer than it takes to read: the sender's memory may be pinned by it.
class Delivery {
 public:
  // Where pieces of a payload meet: at multiples of this, so that no element lies in two of them.
  static constexpr std::size_t kPieceAlignment = 64;

  // What a backend implements for its messages.
  class Payload {
   public:
    // Shows all of the payload once, from its beginning to its end, at addresses aligned for any element where the
    // sender's were. Waits for what has not come yet until the deadline that `receive` was given.
    virtual void read(const PieceReader& reader) = 0;
    virtual void release() noexcept = 0;

   protected:
    ~Payload() = default;
  };

  Delivery(Header header, Payload& payload) : header_(header), payload_(&payload) {}
  Delivery(Delivery&& other) noexcept : header_(other.header_), payload_(std::exchange(other.payload_, nullptr)) {}
  Delivery& operator=(Delivery&&) = delete;
  ~Delivery() {
    if (payload_ != nullptr) payload_->release();
  }

  const Header& header() const { return header_; }
  // Once, and once only, one of these. PeerError lost, late, or the world's failure.
  void read(const PieceReader& reader) const { payload_->read(reader); }
  // A destination of another length is a UsageError naming both.
  void copy_to(std::span<std::byte> destination) const;

 private:
  Header header_;
  Payload* payload_;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Locality locality(Rank peer) const = 0;

  // Starts a message; never waits for the receiver. Until finish_send or cancel_send came back, the payload must stay
  // where and as it is. A rank may send to itself.
  virtual SendTicket start_send(Rank to, Tag tag, std::span<const std::byte> payload) = 0;

  // Waits until the payload is no longer needed. Whether it returns or throws: afterwards nobody reads the payload.
  // PeerError lost, late, or the world's failure.
  virtual void finish_send(SendTicket ticket, Deadline deadline) = 0;

  // Takes the message back, or where it is being read already, waits for that to end.
  virtual void cancel_send(SendTicket ticket) noexcept = 0;

  // The oldest message of that rank and tag. PeerError lost, late, or the world's failure; a message that arrived
  // before its sender was lost is still handed out.
  virtual Delivery receive(Rank from, Tag tag, Deadline deadline) = 0;

  // Says that the next message of that rank and tag will be received soon, so that a long one need not wait on its side
  // until `receive` is called. A hint: it changes nothing else.
  virtual void expect(Rank from, Tag tag) = 0;

  // Breaks this world for every rank in it: all waits end with `failure`. The first failure stays.
  virtual void abort(Failure failure) noexcept = 0;
  virtual std::optional<Failure> failure() const = 0;

  // Says that this rank is gone for good, from this world and from those regrouped from it: waits for it end, naming it
  // and saying why. Destroying the object does the same for its own world. A reason that begins with kGaveUp says that
  // others are to blame: where these are gone, too, they alone are named.
  virtual void depart(std::string_view why) noexcept = 0;

  // Whom `peer` is itself waiting for at the moment, or `peer`: so that a chain of waits blames its far end.
  virtual Rank held_up_by(Rank peer) const = 0;

  // Where all ranks share memory, the place where they meet; otherwise none.
  virtual SharedBoard* shared_board() = 0;

  // The engine's own collectives, where it has some; otherwise none.
  virtual EngineCalls* engine_calls() = 0;

  // A new world of some members of this one, which all call this with the same list; ranks follow the list's order.
  // Works in a broken world too. PeerError where a member brings another list, is lost or late.
  virtual std::unique_ptr<Transport> regroup(std::span<const Rank> members, Deadline deadline) = 0;
};

// Start and finish in one.
inline void send(Transport& transport, Rank to, Tag tag, std::span<const std::byte> payload, Deadline deadline) {
  transport.finish_send(transport.start_send(to, tag, payload), deadline);
}

}  // namespace tutti
