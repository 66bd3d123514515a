// How much memory a value takes, and about how long it is on its way.
#pragma once

#include <tutti/base/shape.hpp>

namespace tutti::detail {

// Of a row.
inline double bytes_of(const ValueSpec& spec) {
  return static_cast<double>(element_count(spec.shape).value_or(0)) * (spec.type == ValueType::int64 ? 8 : 4);
}

// What it costs both ends to hand a tensor over: to wake the other, and its bytes through caches or shared memory.
inline double seconds_to_move(double bytes) {
  constexpr double kSecondsOfMessage = 10e-6;
  constexpr double kBytesPerSecond = 5e9;
  return kSecondsOfMessage + bytes / kBytesPerSecond;
}

}  // namespace tutti::detail
