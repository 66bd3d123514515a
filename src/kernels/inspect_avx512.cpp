#if !defined(__AVX512F__)
#error "inspect_avx512.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_INSPECT_TABLE kInspectAvx512
#include "inspect_loops.hpp"
