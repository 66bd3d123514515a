// What becomes of a module's buffers, such as the running statistics of batch norm, after a step.
#pragma once

#include <cstdint>

namespace tutti {

enum class Buffers : std::uint8_t {
  follow_first,  // all take those of the first replica, rank or shard
  averaged,      // all take the mean
  per_shard,     // each logical shard keeps its own; the module gets the mean
};

}  // namespace tutti
