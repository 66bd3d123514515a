// Takes the place of libtorch's kernels for operators that it has kernels for. libtorch warns on stderr of each one;
// here that is what is meant.
//
//   replace_kernels(c10::DispatchKey::CPU, [](torch::Library& aten) { aten.impl("uniform_", TORCH_FN(own_uniform_));
//   });
#pragma once

#include <string>

#include <c10/util/Exception.h>
#include <torch/library.h>

namespace tutti {

class AllButOverriding : public c10::WarningHandler {
 public:
  explicit AllButOverriding(c10::WarningHandler* others) : others_(others) {}

  void process(const c10::SourceLocation& place, const std::string& message, bool verbatim) override {
    if (message.find("Overriding a previously registered kernel") == std::string::npos) {
      others_->process(place, message, verbatim);
    }
  }

 private:
  c10::WarningHandler* others_;
};

// The kernels stay as long as what is returned.
template <typename F>
[[nodiscard]] torch::Library replace_kernels(c10::DispatchKey key, F add) {
  // Each thread has a handler of its own, whatever its comment in libtorch says.
  AllButOverriding handler(c10::Warning::get_warning_handler());
  const c10::Warning::WarningHandlerGuard guard(&handler);
  torch::Library library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  add(library);
  return library;
}

}  // namespace tutti
