#include <tutti/kernels/inspect.hpp>

#include <array>
#include <bit>
#include <cstdint>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// As many sums side by side, so that the compiler can make vectors of them.
constexpr std::size_t kLanes = 16;

template <typename Bits, Bits kExponent, typename T>
bool has_only_finite(const T* values, std::size_t length) {
  // Of a number that is not finite all bits of the exponent are set.
  Bits found = 0;
  for (std::size_t i = 0; i < length; ++i)
    found |= static_cast<Bits>((std::bit_cast<Bits>(values[i]) & kExponent) == kExponent);
  return found == 0;
}

template <typename T>
double squares_of(const T* values, std::size_t length) {
  std::array<double, kLanes> sums{};
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

[[noreturn]] void refuse(DataType type) {
  throw UsageError(fmt::format("only float32 and float64 are looked at, not {}", to_string(type)));
}

}  // namespace

bool all_finite(DataType type, const void* array, std::size_t length) {
  if (type == DataType::float32)
    return has_only_finite<std::uint32_t, 0x7f800000u>(static_cast<const float*>(array), length);
  if (type == DataType::float64)
    return has_only_finite<std::uint64_t, 0x7ff0000000000000u>(static_cast<const double*>(array), length);
  refuse(type);
}

double sum_of_squares(DataType type, const void* array, std::size_t length) {
  if (type == DataType::float32) return squares_of(static_cast<const float*>(array), length);
  if (type == DataType::float64) return squares_of(static_cast<const double*>(array), length);
  refuse(type);
}

}  // namespace tutti
