// The loops of inspect.hpp, compiled once for each set of instructions.
#pragma once

#include <cstddef>

namespace tutti::detail {

struct InspectLoops {
  bool (*all_finite)(const void* array, std::size_t length);
  double (*sum_of_squares)(const void* array, std::size_t length);
};

struct InspectTable {
  InspectLoops float32;
  InspectLoops float64;
};

extern const InspectTable kInspectBaseline;
#if defined(__x86_64__)
extern const InspectTable kInspectAvx2;
extern const InspectTable kInspectAvx512;
#endif

}  // namespace tutti::detail
