// The loops of fold.hpp, once per kind of instructions. This header is all that fold.cpp and the loops share: code
// compiled for wider instructions must not bring along functions that the linker could merge with everybody's.
#pragma once

#include <cstddef>

namespace tutti::detail {

struct FoldArguments {
  const void* const* sources = nullptr;
  std::size_t source_count = 0;
  void* const* destinations = nullptr;
  std::size_t destination_count = 0;
  std::size_t length = 0;
  int divisor = 1;  // of mean
};

using FoldLoop = void (*)(const FoldArguments&);

struct FoldLoops {
  FoldLoop sum = nullptr;
  FoldLoop mean = nullptr;  // of floating types
  FoldLoop min = nullptr;
  FoldLoop max = nullptr;
};

struct FoldTable {
  FoldLoops float32;
  FoldLoops float64;
  FoldLoops float16;
  FoldLoops bfloat16;
  FoldLoops int32;
  FoldLoops int64;
};

extern const FoldTable kFoldBaseline;
extern const FoldTable kFoldAvx2;
extern const FoldTable kFoldAvx512;

}  // namespace tutti::detail
