// Many short runs of one thing by several threads at a time, with random numbers of everything.
//
//   run_interleavings<Run>(seed, {.threads = 4, .runs = 500},
//                          [](Run& run, std::size_t thread, RandomStream& draws) { ... },   // on each thread
//                          [](Run& run, RandomStream& draws) { ... });                      // on this one, meanwhile
//
// A Run is made of draws. It has verdict(), which says what was wrong with it when all have ended, and describe().
#pragma once

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kRunsAreSlow = true;
#else
inline constexpr bool kRunsAreSlow = false;
#endif

struct Interleavings {
  std::size_t threads = 4;
  std::uint64_t runs = 1;  // TUTTI_INTERLEAVINGS asks for others: there are long tests under the thread sanitizer, too
};

// As if something took its time.
inline void dawdle(RandomStream& draws) {
  switch (draws.below(4)) {
    case 0: std::this_thread::yield(); break;
    case 1:
      for (std::uint64_t i = draws.below(200); i > 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
      break;
    default: break;
  }
}

// The threads are the same in all runs, and the same seed draws the same numbers.
template <typename Run, typename Work, typename Control>
void run_interleavings(std::uint64_t seed, Interleavings options, const Work& work, const Control& control) {
  if (const char* asked = std::getenv("TUTTI_INTERLEAVINGS")) options.runs = std::stoull(asked);
  std::unique_ptr<Run> run;
  std::atomic<bool> is_over = false;
  std::barrier turns(static_cast<std::ptrdiff_t>(options.threads) + 1);
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < options.threads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t number = 0;; ++number) {
        turns.arrive_and_wait();
        if (is_over) return;
        RandomStream draws({seed, number, thread});
        work(*run, thread, draws);
        turns.arrive_and_wait();
      }
    });
  }
  for (std::uint64_t number = 0; number < options.runs; ++number) {
    RandomStream draws({seed, number, options.threads});
    run = std::make_unique<Run>(draws);
    turns.arrive_and_wait();
    control(*run, draws);
    turns.arrive_and_wait();
    const std::string what = run->verdict();
    EXPECT_EQ(what, "") << "seed " << seed << ", run " << number << ": " << run->describe();
    if (!what.empty()) break;
  }
  is_over = true;
  turns.arrive_and_wait();
}

}  // namespace tutti::testing
