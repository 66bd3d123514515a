#if !defined(__AVX2__)
#error "optimizer_avx2.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_UPDATE_TABLE kUpdateAvx2
#include "optimizer_loops.hpp"
