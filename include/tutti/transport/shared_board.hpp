// Where ranks of one host meet for a call.
//
//   board.enter({.note = what_i_bring, .source = mine, .destination = mine}, deadline);   // waits for everybody
//
// In one address space they lay their memory open to each other for the length of the call:
//
//   {
//     const SharedBoard::Touch touch(board);
//     for (Rank peer : all_ranks(size)) read(board.entry(peer).source);
//   }
//   board.leave(deadline);                                                                // waits for everybody
//
// Others' memory is touched only under a Touch, which there is none of in an aborted world. So whoever wants its memory
// back before all have left aborts the world and then calls `give_up`, which waits until nobody touches anything.
//
// Processes cannot follow each other's pointers: there `addressable` is false, and arrays pass through windows, memory
// of the board itself, of which each rank has one that it writes and all read. A call may `leave` any number of times:
// the k-th leave of a rank meets the k-th of the others.
//
// The k-th `enter` of a rank meets the k-th of the others. One thread at a time per rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>

namespace tutti {

// What a rank lays open for one call.
struct BoardEntry {
  std::array<std::byte, 64> note{};  // the caller's own words on what it brings
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

class SharedBoard {
 public:
  // How much of its own a rank can bring into the board itself, where it stays readable after others have gone on.
  static constexpr std::size_t kSlotBytes = 16 * 1024;

  // Memory for the next `enter`; readable by all, as `slot`, from then on until the enter after it.
  virtual std::span<std::byte> next_slot() = 0;

  // PeerError lost or late naming who has not come, or the world's failure.
  virtual void enter(const BoardEntry& entry, Deadline deadline) = 0;

  // What `peer` brought to the current call.
  virtual const BoardEntry& entry(Rank peer) const = 0;
  virtual std::span<const std::byte> slot(Rank peer) const = 0;

  // Whether the pointers of an entry can be followed.
  virtual bool addressable() const noexcept = 0;
  // That rank's window, where they cannot; all are equally long, and none is where they can.
  virtual std::span<std::byte> window(Rank peer) = 0;

  // Says that this rank is through with everybody's memory, and waits until everybody is. Not needed after a call in
  // which nobody touched any.
  virtual void leave(Deadline deadline) = 0;

  // In an aborted world: waits until nobody touches anything any more. Never long, because who touches looks up often.
  virtual void give_up() noexcept = 0;

  // True once the world was aborted; for whoever touches for long.
  virtual bool aborted() const noexcept = 0;

  // The right to touch what the others laid open. Throws the world's failure where it is aborted.
  class Touch {
   public:
    explicit Touch(SharedBoard& board) : board_(board) { board_.begin_touch(); }
    ~Touch() { board_.end_touch(); }
    Touch(const Touch&) = delete;
    Touch& operator=(const Touch&) = delete;

   private:
    SharedBoard& board_;
  };

 protected:
  ~SharedBoard() = default;

  virtual void begin_touch() = 0;
  virtual void end_touch() noexcept = 0;
};

}  // namespace tutti
