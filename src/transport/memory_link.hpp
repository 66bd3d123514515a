// A link through memory that two processes share: a ring of bytes each way. Whoever writes frames moves one end,
// whoever reads them the other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <tutti/transport/link.hpp>

#include "doorbell.hpp"

namespace tutti {

// Lies in shared memory, zeros at first. Positions count bytes since the beginning.
struct FrameRing {
  static constexpr std::size_t kBytes = 512 * 1024;

  alignas(128) std::atomic<std::uint64_t> written{0};
  alignas(128) std::atomic<std::uint64_t> read{0};
  alignas(128) std::atomic<bool> writer_waits{false};
  alignas(128) std::array<std::byte, kBytes> bytes;
};

class MemoryLink final : public Link {
 public:
  // `peer_bell` wakes the other process.
  MemoryLink(FrameRing& outgoing, FrameRing& incoming, Doorbell& peer_bell)
      : outgoing_(outgoing), incoming_(incoming), peer_bell_(peer_bell) {}

  void start(std::function<void()>) override {}  // the peer rings
  std::size_t most_body_bytes() const override { return kMostBodyBytes; }
  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool stirred() const noexcept override;
  FrameBytes front() override;
  void pop() override;
  std::optional<std::string> closed() override { return std::nullopt; }  // the peer's other link tells
  void close() noexcept override {}

 private:
  // A quarter of the ring, so that writer and reader work at the same time.
  static constexpr std::size_t kMostBodyBytes = FrameRing::kBytes / 4 - kBodyAlignment;

  FrameRing& outgoing_;
  FrameRing& incoming_;
  Doorbell& peer_bell_;
  std::size_t front_bytes_ = 0;  // that the frame at the front takes in the ring; 0 while there is none
};

}  // namespace tutti
