#include "doorbell.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <ctime>

namespace tutti {

CoreSet usable_cores() {
  CoreSet cores{};
  cpu_set_t set;
  static_assert(sizeof set == sizeof cores);
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::memcpy(&cores, &set, sizeof cores);
  return cores;
}

int count_cores(const CoreSet& cores) {
  int sum = 0;
  for (std::uint64_t word : cores) sum += std::popcount(word);
  return sum;
}

Patience Patience::for_ranks(int ranks, int cores) {
  // With a core for everybody a peer is a cache miss away, and spinning is soonest. After that it yields for some two
  // milliseconds before it sleeps: two ranks that the system put on one core stay there as long as they take turns to
  // sleep, and are spread over the cores when both stay runnable.
  if (ranks <= cores) return {.spins = 100, .yields = 8000};
  // Otherwise spinning keeps the very peer off the core that one waits for.
  return {.spins = 0, .yields = 500};
}

void relax_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void yield_cpu() noexcept { sched_yield(); }

const int Doorbell::kPrivate = FUTEX_PRIVATE_FLAG;

void Doorbell::wake_all() noexcept {
  rings_.fetch_add(1);
  syscall(SYS_futex, &rings_, FUTEX_WAKE | private_flag_, INT32_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep_unless_rung_since(std::uint32_t rings, Duration longest) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec relative{.tv_sec = seconds.count(), .tv_nsec = (longest - seconds).count()};
  syscall(SYS_futex, &rings_, FUTEX_WAIT | private_flag_, rings, &relative, nullptr, 0);
}

}  // namespace tutti
