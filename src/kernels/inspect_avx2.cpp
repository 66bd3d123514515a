#if !defined(__AVX2__)
#error "inspect_avx2.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_INSPECT_TABLE kInspectAvx2
#include "inspect_loops.hpp"
