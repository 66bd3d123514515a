// How much memory a program may still take.
#pragma once

#include <cstdint>

namespace tutti::cli {

// What the machine has left, or the control group where that is less; the largest number where neither tells.
std::uint64_t available_memory();

}  // namespace tutti::cli
