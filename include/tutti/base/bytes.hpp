// A count of bytes, as people write it: "1KiB", "4 MiB", "1500".
//
//   Bytes size = parse_bytes("4MiB");     // Bytes{4194304}
//   to_string(size);                      // "4 MiB"
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

struct Bytes {
  std::uint64_t value = 0;

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
};

// Takes a whole number and, if wanted, B, KiB, MiB, GiB or TiB (K, M, G, T mean the same); anything else, or a number
// that no 64-bit count can hold, is a UsageError.
Bytes parse_bytes(std::string_view text);

// The largest unit that divides the count evenly.
std::string to_string(Bytes bytes);

}  // namespace tutti
