// What a thread that computes for libtorch is set to.
#pragma once

#include <torch/types.h>

namespace tutti::detail {

// How many cores this process may use.
int usable_core_count();

// libtorch's own loops on this thread run on it alone: replicas have a core each.
void use_one_thread();

// The same, until it is destroyed.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

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
