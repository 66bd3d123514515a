// The choice behind <tutti/kernels/instructions.hpp>, for the tables of loops.
#pragma once

#include <cstdint>

namespace tutti::detail {

// In rising order: each includes those before it.
enum class Instructions : std::uint8_t { baseline, avx2, avx512 };

// May be called at any time from any thread, also before main.
Instructions chosen_instructions();

}  // namespace tutti::detail
