// Looks at arrays without changing them.
//
//   if (!all_finite(DataType::float32, gradients, n)) ...
//   const double norm = std::sqrt(sum_of_squares(DataType::float32, gradients, n));
#pragma once

#include <cstddef>

#include <tutti/base/data_type.hpp>

namespace tutti {

// Neither NaN nor infinite. float32 or float64; a UsageError for others.
bool all_finite(DataType type, const void* array, std::size_t length);

// In double, in an order that depends on the length alone: the same bits on every CPU.
double sum_of_squares(DataType type, const void* array, std::size_t length);

}  // namespace tutti
