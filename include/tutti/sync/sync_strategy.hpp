// What a round does with everybody's gradients.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class SyncStrategy : std::uint8_t {
  all_reduce,      // all workers get the mean
  reduce_to_root,  // one does; the others' gradients stay as they are
  no_sync,         // everybody's stay as they are, and nobody waits
};

// "AllReduce", "ReduceToRoot", "NoSync". A UsageError names the nearest where there is no such strategy.
std::string_view to_string(SyncStrategy strategy);
SyncStrategy parse_sync_strategy(std::string_view name);

}  // namespace tutti
