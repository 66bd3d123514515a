// Where a rank waits until something it looks at may have changed: it spins briefly, yields for a while, and then
// sleeps on a futex, because ranks may outnumber cores.
//
//   waiter:    doorbell.wait([&] { return flag.load(); }, deadline, patience);
//   notifier:  flag.store(true); doorbell.ring();
//
// What the waiter looks at must be sequentially consistent atomics: then either the notifier sees the sleeper, or the
// sleeper sees the change.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <tutti/base/deadline.hpp>

namespace tutti {

// Cores, as bits.
using CoreSet = std::array<std::uint64_t, 16>;

// Those that this process may use.
CoreSet usable_cores();
int count_cores(const CoreSet& cores);

// How long to wait awake.
struct Patience {
  int spins = 0;
  int yields = 0;

  // For `ranks` that share so many cores.
  static Patience for_ranks(int ranks, int cores);
};

void relax_cpu() noexcept;
void yield_cpu() noexcept;

class Doorbell {
 public:
  // In memory that processes share, where `between_processes`.
  explicit Doorbell(bool between_processes = false) : private_flag_(between_processes ? 0 : kPrivate) {}

  void ring() noexcept {
    if (sleepers_.load() != 0) wake_all();
  }

  // False where the deadline passed and `ready` is still false.
  template <typename Ready>
  bool wait(Ready&& ready, Deadline deadline, Patience patience) {
    for (int i = 0; i < patience.spins; ++i) {
      if (ready()) return true;
      relax_cpu();
    }
    for (int i = 0; i < patience.yields; ++i) {
      if (ready()) return true;
      yield_cpu();
    }
    sleepers_.fetch_add(1);
    bool is_ready = false;
    for (;;) {
      const std::uint32_t rings = rings_.load();
      is_ready = ready();
      if (is_ready || deadline.passed()) break;
      sleep_unless_rung_since(rings, deadline.remaining());
    }
    sleepers_.fetch_sub(1);
    return is_ready;
  }

 private:
  void wake_all() noexcept;
  void sleep_unless_rung_since(std::uint32_t rings, Duration longest) noexcept;

  static const int kPrivate;

  std::atomic<std::uint32_t> rings_{0};
  std::atomic<int> sleepers_{0};
  const int private_flag_;
};

}  // namespace tutti
