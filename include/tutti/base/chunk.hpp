// Cuts a length into contiguous chunks, one per rank, whose sizes differ by at most one; the longer ones come first.
//
//   chunk(10, 4, 1);   // {.first = 3, .count = 3} of 3, 3, 2, 2
#pragma once

#include <algorithm>
#include <cstddef>

namespace tutti {

struct Slice {
  std::size_t first = 0;
  std::size_t count = 0;

  constexpr std::size_t end() const { return first + count; }
  constexpr bool empty() const { return count == 0; }
  friend constexpr bool operator==(const Slice&, const Slice&) = default;
};

constexpr Slice chunk(std::size_t length, int chunks, int index) {
  const auto n = static_cast<std::size_t>(chunks);
  const auto i = static_cast<std::size_t>(index);
  const std::size_t shortest = length / n;
  const std::size_t longer = length % n;
  return {i * shortest + std::min(i, longer), shortest + (i < longer ? 1 : 0)};
}

}  // namespace tutti
