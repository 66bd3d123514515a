// Collectives that the engine under a transport has of its own, for those who name them (AllReduceStrategy Gloo). No
// promise on the order of sums.
#pragma once

#include <functional>
#include <memory>

#include <tutti/base/array.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/base/reduce_op.hpp>

namespace tutti {

class EngineCalls {
 public:
  virtual ~EngineCalls() = default;

  // Whether the engine knows that type.
  virtual bool can_all_reduce(DataType type) const = 0;

  // Everybody's `data` becomes the Sum, Min or Max. Ends early where `given_up` says so. Whether it returns or throws:
  // afterwards nobody touches `data`.
  virtual void all_reduce(Array data, ReduceOp op, const std::function<bool()>& given_up, Deadline deadline) = 0;
};

// An engine's calls among the ranks of one world, all of whom ask for them.
struct EngineWorld {
  std::uint64_t id = 0;  // the same on all its ranks, and no other world's
  Rank rank = {};
  int size = 1;
};
using EngineFactory = std::function<std::unique_ptr<EngineCalls>(const EngineWorld& world)>;

}  // namespace tutti
