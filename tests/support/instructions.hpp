// The kernels with every kind of instructions that this CPU has.
#pragma once

#include <functional>
#include <string_view>

#include <gtest/gtest.h>
#include <tutti/kernels/instructions.hpp>

namespace tutti::testing {

// Until it goes out of scope the kernels use the named instructions.
class InstructionsInUse {
 public:
  explicit InstructionsInUse(std::string_view name) : before_(kernel_instructions()) { use_kernel_instructions(name); }
  ~InstructionsInUse() { use_kernel_instructions(before_); }
  InstructionsInUse(const InstructionsInUse&) = delete;
  InstructionsInUse& operator=(const InstructionsInUse&) = delete;

 private:
  std::string_view before_;
};

// Calls `body` once per kind of instructions, while they are in use.
inline void with_all_instructions(const std::function<void()>& body) {
  for (std::string_view instructions : available_kernel_instructions()) {
    SCOPED_TRACE(instructions);
    const InstructionsInUse in_use(instructions);
    body();
  }
}

}  // namespace tutti::testing
