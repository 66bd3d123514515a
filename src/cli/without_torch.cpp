// In a `tutti` that has no program with libtorch beside it: otherwise it would have gone on as that.
#include <tutti/base/error.hpp>

#include "cli/verb.hpp"

namespace tutti::cli {

void run_check(Arguments) {
  throw Error("'tutti check' needs the program tutti-torch, which is not beside this one, or was not built");
}

}  // namespace tutti::cli
