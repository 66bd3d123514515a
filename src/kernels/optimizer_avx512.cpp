#if !defined(__AVX512F__)
#error "optimizer_avx512.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_UPDATE_TABLE kUpdateAvx512
#include "optimizer_loops.hpp"
