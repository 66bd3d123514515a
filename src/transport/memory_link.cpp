#include "memory_link.hpp"

#include <cstring>

#include <tutti/base/assert.hpp>

namespace tutti {
namespace {

// Ahead of each frame, so that head and body follow as Link wants them.
constexpr std::size_t kLengthBytes = Link::kBodyAlignment - Link::kHeadBytes;
// In place of a length: the rest of the ring is left empty, the next frame begins at its start.
constexpr std::uint64_t kWrap = ~std::uint64_t{0};

std::size_t room_for(std::size_t frame_bytes) {
  return (kLengthBytes + frame_bytes + Link::kBodyAlignment - 1) / Link::kBodyAlignment * Link::kBodyAlignment;
}

std::byte* place(FrameRing& ring, std::uint64_t position) { return &ring.bytes[position % FrameRing::kBytes]; }

}  // namespace

bool MemoryLink::write(std::span<const std::byte> head, std::span<const std::byte> body) {
  TUTTI_ASSERT_EQ(head.size(), kHeadBytes);
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  const std::uint64_t bytes = head.size() + body.size();
  std::uint64_t position = outgoing_.written.load(std::memory_order_relaxed);
  const std::uint64_t to_end = FrameRing::kBytes - position % FrameRing::kBytes;
  const bool wraps = room_for(bytes) > to_end;
  const std::uint64_t needed = room_for(bytes) + (wraps ? to_end : 0);
  const auto has_room = [&] { return position + needed - outgoing_.read.load() <= FrameRing::kBytes; };
  if (!has_room()) {
    // Said first and looked at again: either the reader sees that we wait, or we see what it freed.
    outgoing_.writer_waits.store(true);
    if (!has_room()) return false;
  }
  if (wraps) {
    std::memcpy(place(outgoing_, position), &kWrap, sizeof kWrap);
    position += to_end;
  }
  std::byte* frame = place(outgoing_, position);
  std::memcpy(frame, &bytes, sizeof bytes);
  std::memcpy(frame + kLengthBytes, head.data(), head.size());
  if (!body.empty()) std::memcpy(frame + kBodyAlignment, body.data(), body.size());
  outgoing_.written.store(position + room_for(bytes));
  peer_bell_.ring();
  return true;
}

bool MemoryLink::stirred() const noexcept { return incoming_.written.load() != incoming_.read.load(); }

FrameBytes MemoryLink::front() {
  std::uint64_t position = incoming_.read.load(std::memory_order_relaxed);
  if (incoming_.written.load() == position) return {};
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, place(incoming_, position), sizeof bytes);
  if (bytes == kWrap) {
    position += FrameRing::kBytes - position % FrameRing::kBytes;
    incoming_.read.store(position);
    std::memcpy(&bytes, place(incoming_, position), sizeof bytes);
  }
  front_bytes_ = room_for(bytes);
  const std::byte* head = place(incoming_, position) + kLengthBytes;
  return {{head, kHeadBytes}, {head + kHeadBytes, bytes - kHeadBytes}};
}

void MemoryLink::pop() {
  incoming_.read.store(incoming_.read.load(std::memory_order_relaxed) + front_bytes_);
  front_bytes_ = 0;
  if (incoming_.writer_waits.load() && incoming_.writer_waits.exchange(false)) peer_bell_.ring();
}

}  // namespace tutti
