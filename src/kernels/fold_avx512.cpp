#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "fold_avx512.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_FOLD_TABLE kFoldAvx512
#include "fold_loops.hpp"
