// What the data layer draws, as part of the name of its random streams: {seed, Draws, ...}. A number of its own keeps
// each apart from the others, and from what other layers draw with the same seed.
#pragma once

#include <cstdint>

namespace tutti::detail {

enum class Draws : std::uint64_t {
  split = 0x73706c6974,
  order = 0x6f72646572,
  augment = 0x6175676d656e74,
  clients = 0x636c69656e7473
};

constexpr std::uint64_t number_of(Draws draws) { return static_cast<std::uint64_t>(draws); }

}  // namespace tutti::detail
