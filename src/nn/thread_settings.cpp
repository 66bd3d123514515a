#include "thread_settings.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

namespace tutti::detail {
namespace {

// Of this thread; at::set_num_threads is for all that are to come as well.
void set_threads(int threads) {
  static auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace

int usable_core_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

void use_one_thread() {
  at::get_num_threads();  // reads libtorch's own setting for this thread once; ours comes after it
  set_threads(1);
}

OneThread::OneThread() : before_(at::get_num_threads()) { set_threads(1); }
OneThread::~OneThread() { set_threads(before_); }

Autocast::Autocast(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  was_enabled_ = at::autocast::is_cpu_enabled();
  type_before_ = at::autocast::get_autocast_cpu_dtype();
  at::autocast::set_cpu_enabled(true);
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!enabled_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_cpu_enabled(was_enabled_);
  at::autocast::set_autocast_cpu_dtype(type_before_);
}

}  // namespace tutti::detail
