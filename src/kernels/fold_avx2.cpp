#if !defined(__AVX2__) || !defined(__F16C__)
#error "fold_avx2.cpp wants the flags that CMakeLists.txt sets for it"
#endif

#define TUTTI_FOLD_TABLE kFoldAvx2
#include "fold_loops.hpp"
