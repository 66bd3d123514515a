// The BLAS library under libtorch, looked at and set right before it is used.
//
//   const BlasSetup blas = set_up_blas();
//   blas.line();        // "BLAS: OpenBLAS 0.3.21, kernels SkylakeX instead of Prescott, 1 thread"
//
// - OpenBLAS with several threads lets calls from several replicas wait for each other: it gets one thread.
// - OpenBLAS takes CPUs that are newer than it for old ones, and runs kernels that are three to six times as slow: it
//   gets those of the widest instructions that the CPU has. OPENBLAS_CORETYPE in the environment comes before that;
//   where OpenBLAS cannot change its kernels any more, the line says what to set it to.
#pragma once

#include <string>

namespace tutti {

struct BlasSetup {
  std::string library = {};         // "OpenBLAS 0.3.21"; empty where it is none that tutti knows
  std::string found_kernels = {};   // what it had chosen
  std::string kernels = {};         // what it runs now
  std::string better_kernels = {};  // for this CPU, where it runs others and cannot change them
  int threads = 0;                  // 0 where it cannot be told

  std::string line() const;
};

// Once a process, before the first product of matrices if it can be; later calls return what the first one found. The
// first call says its line on stderr, in the first of the processes of a host, unless TUTTI_QUIET is set. Any thread
// may call it.
const BlasSetup& set_up_blas();

}  // namespace tutti
