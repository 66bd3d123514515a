// A stream of frames to one peer and back: what an engine such as Gloo brings, so that ranks can be processes
// (transport/processes.hpp). A frame is some bytes that arrive whole, once, and in the order they were written.
//
//   link.start([&] { doorbell.ring(); });
//   if (!link.write(head, body)) ...                       // no room now; it rings when there may be
//   for (FrameBytes frame = link.front(); !frame.empty(); frame = link.front()) { handle(frame); link.pop(); }
//
// Threads: one at a time uses a link; `stirred` is for any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace tutti {

// Head and body of a frame; both empty where there is none.
struct FrameBytes {
  std::span<const std::byte> head;
  std::span<const std::byte> body;

  bool empty() const { return head.empty(); }
};

class Link {
 public:
  // Every frame begins with a head of this length, and what follows it lies at a multiple of kBodyAlignment, here and
  // there.
  static constexpr std::size_t kHeadBytes = 48;
  static constexpr std::size_t kBodyAlignment = 64;

  virtual ~Link() = default;

  // From now on `ring` is called, from any thread, when a frame has come, there is room again, or the link closed.
  virtual void start(std::function<void()> ring) = 0;

  // The longest body a frame can have: a multiple of kBodyAlignment.
  virtual std::size_t most_body_bytes() const = 0;

  // Copies. False where there is no room now, and nothing was written.
  virtual bool write(std::span<const std::byte> head, std::span<const std::byte> body) = 0;

  // The same, but the body may stay where it is, and must not change until it is returned: the link counts what was
  // lent to it and what of that it returned, in the same order. `wanted_back`: somebody waits for this one.
  virtual bool lend(std::span<const std::byte> head, std::span<const std::byte> body, bool wanted_back) {
    static_cast<void>(wanted_back);
    return write(head, body);
  }
  virtual std::uint64_t lent() const { return 0; }
  virtual std::uint64_t returned() { return 0; }
  // Somebody waits for all that was lent so far.
  virtual void want_back() {}

  // Whether a frame has come, or the link has closed.
  virtual bool stirred() const noexcept = 0;

  // The oldest frame that has come. It stays until `pop`.
  virtual FrameBytes front() = 0;
  virtual void pop() = 0;

  // Why nothing more will come or go, once that is so and all that came was popped: the peer's process has ended, or
  // the network failed.
  virtual std::optional<std::string> closed() = 0;

  // Nothing more goes out, and all that was lent is returned.
  virtual void close() noexcept = 0;
};

}  // namespace tutti
