#include <tutti/nn/one_thread.hpp>

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>

#include <ATen/Parallel.h>

namespace tutti {
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

}  // namespace tutti
