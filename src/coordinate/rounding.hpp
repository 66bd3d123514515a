// A number in double, rounded once to another floating type.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>

#include <tutti/base/data_type.hpp>

namespace tutti::detail {

// To float, so that what is rounded again to half as many bits is rounded as if it were once: towards zero, and odd
// where that is not exact.
inline float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool is_too_far = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>((is_too_far ? bits - 1 : bits) | 1u);
}

template <Element T>
requires(!std::integral<T>) T rounded(double value) {
  if constexpr (std::floating_point<T>)
    return static_cast<T>(value);
  else
    return T::from_float(rounded_to_odd(value));
}

}  // namespace tutti::detail
