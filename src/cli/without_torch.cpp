// In a `tutti` that has no program with libtorch beside it: otherwise it would have gone on as that.
#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "cli/verb.hpp"

namespace tutti::cli {

namespace {

[[noreturn]] void refuse(const char* verb) {
  throw Error(
      fmt::format("'tutti {}' needs the program tutti-torch, which is not beside this one, or was not built", verb));
}

}  // namespace

void run_check(Arguments) { refuse("check"); }
void run_eval(Arguments) { refuse("eval"); }
void run_export(Arguments) { refuse("export"); }
void run_fetch(Arguments) { refuse("fetch"); }
void run_predict(Arguments) { refuse("predict"); }
void run_train(Arguments) { refuse("train"); }

}  // namespace tutti::cli
