// Numbers of 16 bits in place of float32, where that is good enough.
#pragma once

#include <torch/types.h>

namespace tutti::detail {

// bfloat16 where libtorch thinks fit, on this thread, until it is destroyed. Does nothing where not `enabled`.
class Autocast {
 public:
  explicit Autocast(bool enabled);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool enabled_;
  bool was_enabled_ = false;
  at::ScalarType type_before_ = at::kBFloat16;
};

}  // namespace tutti::detail
