// Which of the CPU's instructions the loops over arrays use. By themselves they take the widest; results do not depend
// on it, bit for bit.
//
//   for (std::string_view name : available_kernel_instructions()) {
//     use_kernel_instructions(name);
//     measure();
//   }
#pragma once

#include <string_view>
#include <vector>

namespace tutti {

// Those in use: "avx512", "avx2" or "baseline".
std::string_view kernel_instructions();

// Those that this CPU could run, the widest first; "baseline" is always there.
std::vector<std::string_view> available_kernel_instructions();

// From now on use one of the available ones, in the whole process; any other name is a UsageError. For tests and
// comparisons: loops that run meanwhile may use either.
void use_kernel_instructions(std::string_view name);

}  // namespace tutti
