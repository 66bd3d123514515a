// A number of 64 bits that tells whether bytes are still those they were: a flipped bit, a lost or a moved block
// changes it.
//
//   Checksum sum;
//   sum.add(header);
//   sum.add(data);            // the same as if both had come in one piece, or byte by byte
//   to_hex(sum.value());      // "d24ec4f1a98c6e5b"
//
// It is XXH64 (Yann Collet, https://xxhash.com) with seed 0, the same on every platform and in every language that has
// it: four lanes multiply and rotate side by side, so that it passes over memory at several GB/s. It guards against
// accidents, not against somebody who wants to deceive. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

class Checksum {
 public:
  Checksum();

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  // Of all that was added up to now.
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kStripe = 32;  // 8 bytes for each lane

  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, kStripe> rest_{};  // what does not fill a stripe yet: length_ % kStripe bytes
  std::uint64_t length_ = 0;
};

// 16 digits, 0 to 9 and a to f.
std::string to_hex(std::uint64_t value);

}  // namespace tutti
