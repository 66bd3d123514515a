// Included by one file for each set of instructions, which names the table in TUTTI_INSPECT_TABLE. The compiler makes
// vectors of these loops. Nothing here may call an inline function of the library's: of several compiled copies the
// linker keeps any.
#include <cstddef>
#include <cstdint>

#include "inspect_table.hpp"

namespace tutti::detail {
namespace {

template <typename T, typename Bits, Bits kExponent>
bool all_finite(const void* array, std::size_t length) {
  const T* values = static_cast<const T*>(array);
  // Of a number that is not finite all bits of the exponent are set.
  Bits found = 0;
  for (std::size_t i = 0; i < length; ++i)
    found |= static_cast<Bits>((__builtin_bit_cast(Bits, values[i]) & kExponent) == kExponent);
  return found == 0;
}

// As many sums side by side, whatever the vectors hold: the same bits on every CPU.
constexpr std::size_t kLanes = 16;

template <typename T>
double sum_of_squares(const void* array, std::size_t length) {
  const T* values = static_cast<const T*>(array);
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < length; ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    sums[lane] += value * value;
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

}  // namespace

const InspectTable TUTTI_INSPECT_TABLE{
    .float32 = {.all_finite = all_finite<float, std::uint32_t, 0x7f800000u>, .sum_of_squares = sum_of_squares<float>},
    .float64 = {.all_finite = all_finite<double, std::uint64_t, 0x7ff0000000000000u>,
                .sum_of_squares = sum_of_squares<double>}};

}  // namespace tutti::detail
