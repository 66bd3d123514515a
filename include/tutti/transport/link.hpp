// A stream of frames to one peer and back: what an engine such as Gloo brings, so that ranks can be processes
// (transport/processes.hpp). A frame is some bytes that arrive whole, once, and in the order they were written.
//
//   link.start([&] { doorbell.ring(); });
//   if (!link.write(head, body)) ...                       // no room now; it rings when there may be
//   for (auto frame = link.front(); !frame.empty(); frame = link.front()) { handle(frame); link.pop(); }
//
// Threads: one at a time uses a link; `stirred` is for any.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace tutti {

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

  // False where there is no room now, and nothing was written.
  virtual bool write(std::span<const std::byte> head, std::span<const std::byte> body) = 0;

  // Whether a frame has come, or the link has closed.
  virtual bool stirred() const noexcept = 0;

  // The oldest frame that has come, head and body; empty where there is none. It stays until `pop`.
  virtual std::span<const std::byte> front() = 0;
  virtual void pop() = 0;

  // Why nothing more will come or go, once that is so and all that came was popped: the peer's process has ended, or
  // the network failed.
  virtual std::optional<std::string> closed() = 0;
};

}  // namespace tutti
