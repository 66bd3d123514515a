#include <tutti/kernels/fold.hpp>

#include <limits>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "chosen_instructions.hpp"
#include "fold_table.hpp"

namespace tutti {
namespace {

const detail::FoldTable& table() {
#if defined(__x86_64__)
  switch (detail::chosen_instructions()) {
    case detail::Instructions::avx512: return detail::kFoldAvx512;
    case detail::Instructions::avx2: return detail::kFoldAvx2;
    case detail::Instructions::baseline: break;
  }
#endif
  return detail::kFoldBaseline;
}

const detail::FoldLoops& loops_of(DataType type) {
  const detail::FoldTable& loops = table();
  switch (type) {
    case DataType::float32: return loops.float32;
    case DataType::float64: return loops.float64;
    case DataType::float16: return loops.float16;
    case DataType::bfloat16: return loops.bfloat16;
    case DataType::int32: return loops.int32;
    case DataType::int64: break;
  }
  return loops.int64;
}

detail::FoldLoop loop_of(ReduceOp op, DataType type) {
  const detail::FoldLoops& loops = loops_of(type);
  switch (op) {
    case ReduceOp::sum: return loops.sum;
    case ReduceOp::mean: return loops.mean;
    case ReduceOp::min: return loops.min;
    case ReduceOp::max: break;
  }
  return loops.max;
}

void refuse_integer_mean(ReduceOp op, DataType type) {
  if (op == ReduceOp::mean && !is_floating(type))
    throw UsageError(fmt::format("Mean needs a floating type, not {}: take the Sum and divide it", to_string(type)));
}

}  // namespace

void fold(ReduceOp op, DataType type, void* destination, const void* lower, const void* upper, std::size_t length) {
  refuse_integer_mean(op, type);
  const void* const sources[] = {lower, upper};
  loop_of(op == ReduceOp::mean ? ReduceOp::sum : op, type)(
      {.sources = sources, .source_count = 2, .destinations = &destination, .destination_count = 1, .length = length});
}

void fold_all(ReduceOp op, DataType type, std::span<const void* const> sources, std::span<void* const> destinations,
              std::size_t length) {
  refuse_integer_mean(op, type);
  if (sources.empty() || sources.size() > std::numeric_limits<int>::max())
    throw UsageError(fmt::format("fold_all needs at least one source and fewer than 2^31, not {}", sources.size()));
  if (destinations.empty()) return;
  loop_of(op, type)({.sources = sources.data(),
                     .source_count = sources.size(),
                     .destinations = destinations.data(),
                     .destination_count = destinations.size(),
                     .length = length,
                     .divisor = static_cast<int>(sources.size())});
}

void divide(DataType type, void* array, std::size_t length, int divisor) {
  refuse_integer_mean(ReduceOp::mean, type);
  if (divisor < 1) throw UsageError(fmt::format("divide needs a positive divisor, not {}", divisor));
  const void* source = array;
  loop_of(ReduceOp::mean, type)({.sources = &source,
                                 .source_count = 1,
                                 .destinations = &array,
                                 .destination_count = 1,
                                 .length = length,
                                 .divisor = divisor});
}

}  // namespace tutti
