#include <tutti/kernels/inspect.hpp>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "chosen_instructions.hpp"
#include "inspect_table.hpp"

namespace tutti {
namespace {

const detail::InspectTable& table() {
#if defined(__x86_64__)
  switch (detail::chosen_instructions()) {
    case detail::Instructions::avx512: return detail::kInspectAvx512;
    case detail::Instructions::avx2: return detail::kInspectAvx2;
    case detail::Instructions::baseline: break;
  }
#endif
  return detail::kInspectBaseline;
}

const detail::InspectLoops& loops_of(DataType type) {
  if (type == DataType::float32) return table().float32;
  if (type == DataType::float64) return table().float64;
  throw UsageError(fmt::format("only float32 and float64 are looked at, not {}", to_string(type)));
}

}  // namespace

bool all_finite(DataType type, const void* array, std::size_t length) {
  return loops_of(type).all_finite(array, length);
}

double sum_of_squares(DataType type, const void* array, std::size_t length) {
  return loops_of(type).sum_of_squares(array, length);
}

}  // namespace tutti
