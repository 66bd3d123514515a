// Threads that compute for libtorch side by side, a core each: libtorch's own loops then run on one thread.
//
//   WorkerTeam team(usable_core_count(), use_one_thread);
//   { const OneThread one_thread;  team.run([&](int worker) { evaluate(worker); }); }
#pragma once

namespace tutti {

// How many cores this process may use.
int usable_core_count();

// libtorch's own loops on this thread run on it alone.
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

}  // namespace tutti
