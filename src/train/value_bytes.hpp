// How much memory a value takes.
#pragma once

#include <tutti/base/shape.hpp>

namespace tutti::detail {

// Of a row.
inline double bytes_of(const ValueSpec& spec) {
  return static_cast<double>(element_count(spec.shape).value_or(0)) * (spec.type == ValueType::int64 ? 8 : 4);
}

}  // namespace tutti::detail
