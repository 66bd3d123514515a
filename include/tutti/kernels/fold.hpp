// Loops that combine arrays element by element, in the widest instructions of the CPU they run on
// (kernels/instructions.hpp).
//
//   fold(ReduceOp::sum, a.type(), a.data(), a.data(), b.data(), n);         // a += b
//   fold_all(ReduceOp::mean, type, contributions, everybody, n);            // everybody = mean of contributions
//
// Rules, the same on every CPU:
// - float16 and bfloat16 are computed with in float32 and rounded once per call: in `fold_all` after the whole tree and
//   the mean's division.
// - Min and Max take the lower operand on a tie (only -0 and +0 differ then).
// - A NaN, whichever it is and however it came about, is written as the one quiet NaN: sign 0, top fraction bit set,
//   the rest 0.
// - Integer sums wrap around. The mean of integers is a UsageError.
//
// Arrays are aligned as their elements are, and overlap in whole or not at all. Any thread may call any function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tutti/base/data_type.hpp>
#include <tutti/base/reduce_op.hpp>
#include <tutti/kernels/instructions.hpp>

namespace tutti {

// destination = lower (op) upper. `destination` may be one of the operands. Mean adds; `divide` ends it.
void fold(ReduceOp op, DataType type, void* destination, const void* lower, const void* upper, std::size_t length);

// Folds all sources, at least one, in order, along the balanced binary tree over them (split at the largest power of
// two below their number) and writes the result to every destination. Destinations may be sources. Mean divides by the
// number of sources.
void fold_all(ReduceOp op, DataType type, std::span<const void* const> sources, std::span<void* const> destinations,
              std::size_t length);

// array = array / divisor, for floating types and positive divisors.
void divide(DataType type, void* array, std::size_t length, int divisor);

// A ring of p ranks folds chunk c in the order c+1, ..., p-1, 0, ..., c. Up to rank p-1 what comes in stems from lower
// ranks than one's own, and `fold` does. From rank 0 on it stems partly from higher and partly from lower ranks, and on
// a tie its value cannot tell which. So while Min and Max of floating types go on to rank c, a zero that stems from
// above is carried as a NaN no result can be: the quiet NaN with fraction bit 0 set, and the zero's sign.
enum class WrapPhase : std::uint8_t {
  enter,   // at rank 0: everything that comes in stems from above; a zero of it that stays is marked
  within,  // at ranks between: marks come in and go out
  leave,   // at rank c: marks come in and are turned back into zeros
};
// Where rank 0 is the last (c = 0) nothing has to be told apart: it folds itself as `lower` with what comes in.

// destination = own (op) incoming, where own is of a lower rank than what is marked and of a higher one than the rest;
// `destination` may be one of the operands. Sum, Mean and the integer types know no such ties: there it is `fold`.
void fold_wrapped(ReduceOp op, DataType type, void* destination, const void* own, const void* incoming,
                  std::size_t length, WrapPhase phase);

}  // namespace tutti
