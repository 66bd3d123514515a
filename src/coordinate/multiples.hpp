// One number of any type, times a factor.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>

#include <tutti/base/data_type.hpp>

namespace tutti::detail {

// In the type itself, halves in float. Integers to the nearest, and no farther than their type goes.
template <Element T>
T multiple(T value, double factor) {
  if constexpr (std::integral<T>) {
    const double product = std::round(static_cast<double>(value) * factor);
    if (product >= -static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::max();
    if (product <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return static_cast<T>(product);
  } else if constexpr (std::floating_point<T>) {
    return value * static_cast<T>(factor);
  } else {
    return T::from_float(value.to_float() * static_cast<float>(factor));
  }
}

}  // namespace tutti::detail
