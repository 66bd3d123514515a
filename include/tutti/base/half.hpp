// The two 16-bit floating-point types, as storage: arithmetic happens in float32 (kernels/).
//
//   float16 half = float16::from_float(0.1f);      // rounds to nearest, ties to even
//   float value = half.to_float();                 // exact
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

// IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits.
struct float16 {
  std::uint16_t bits = 0;

  static constexpr float16 from_float(float value) {
    const auto f = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((f >> 16) & 0x8000u);
    const std::uint32_t magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};   // NaN
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to infinity
    if (magnitude < 0x38800000u) {  // subnormal or zero: let the float adder round at bit 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
    }
    const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
  }

  constexpr float to_float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) {  // fraction x 2^-24, exactly
      const float magnitude = static_cast<float>(fraction) * std::bit_cast<float>(0x33800000u);
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }

  // Compares bits, not values.
  friend constexpr bool operator==(float16, float16) = default;
};

// The upper half of a float32: 1 sign, 8 exponent and 7 fraction bits.
struct bfloat16 {
  std::uint16_t bits = 0;

  static constexpr bfloat16 from_float(float value) {
    const auto f = std::bit_cast<std::uint32_t>(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(((f >> 16) & 0x8000u) | 0x7fc0u)};
    return {static_cast<std::uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16)};
  }

  constexpr float to_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

  // Compares bits, not values.
  friend constexpr bool operator==(bfloat16, bfloat16) = default;
};

}  // namespace tutti
