// One number of any type, times a factor.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>

#include <tutti/base/data_type.hpp>
#include <tutti/base/parameter_set.hpp>

namespace tutti::detail {

// The largest that multiple() and an optimizer's loops have for numbers of a type: others are infinite there.
inline double largest_factor(DataType type) {
  const bool is_in_float = is_floating(type) && type != DataType::float64;
  return is_in_float ? static_cast<double>(std::numeric_limits<float>::max()) : std::numeric_limits<double>::max();
}

// The same of all arrays.
inline double largest_factor(const ParameterSet& set) {
  double largest = std::numeric_limits<double>::max();
  for (const NamedArray& array : set) largest = std::min(largest, largest_factor(array.type()));
  return largest;
}

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
