// What a reduction does with the elements of several arrays (kernels/fold.hpp does it).
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class ReduceOp : std::uint8_t { sum, mean, min, max };

inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

// "Sum", "Mean", "Min", "Max"; any other name is a UsageError.
std::string_view to_string(ReduceOp op);
ReduceOp parse_reduce_op(std::string_view name);

}  // namespace tutti
