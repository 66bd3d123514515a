// In a `tutti` that has no program with libtorch beside it.
#include <tutti/base/error.hpp>

#include "cli/verb.hpp"

namespace tutti::cli {

void run_check(Arguments) { throw Error("'tutti check' needs libtorch, and tutti was built without it"); }

}  // namespace tutti::cli
