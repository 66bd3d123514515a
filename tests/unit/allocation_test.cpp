// A call that has seen its like allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>
#include <tutti/collective.hpp>

#include "support/worlds.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: the compiler would see free() meet what it takes for a new of its own, and warn.
#define REPLACEMENT [[gnu::noinline]]
REPLACEMENT void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
REPLACEMENT void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
REPLACEMENT void operator delete(void* memory) noexcept { std::free(memory); }
REPLACEMENT void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
REPLACEMENT void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
REPLACEMENT void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#undef REPLACEMENT

namespace tutti::testing {
namespace {

class Allocation : public ::testing::TestWithParam<WorldKind> {
 protected:
  // Allocations in twenty rounds, on all ranks together, after some to warm up.
  int in_steady_state(int ranks, const std::function<void(Communicator&, std::vector<float>&)>& call) const {
    allocations = 0;
    run_world(GetParam(), ranks, [&](Communicator& world) {
      std::vector<float> data(30'000);
      const auto rounds = [&](int count) {
        for (int round = 0; round < count; ++round) call(world, data);
      };
      rounds(20);
      barrier(world);
      barrier(world);
      if (world.rank() == Rank{0}) counting = true;
      barrier(world);
      rounds(20);
      barrier(world);
      if (world.rank() == Rank{0}) counting = false;
      barrier(world);
    });
    return allocations;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Allocation, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(Allocation, HappensInNoAllReduceInSteadyState) {
  for (const AllReduceStrategy& algorithm : own_all_reduce_strategies()) {
    if (std::holds_alternative<SharedSlices>(algorithm) && !GetParam().shared_memory) continue;
    for (int ranks : {1, 2, 3, 4}) {
      for (bool reproducible : {false, true}) {
        EXPECT_EQ(in_steady_state(ranks,
                                  [&](Communicator& world, std::vector<float>& data) {
                                    all_reduce(world, data, {.algorithm = algorithm, .reproducible = reproducible});
                                    all_reduce(world, std::span(data).first(100),
                                               {.algorithm = algorithm, .reproducible = reproducible});
                                  }),
                  0)
            << to_string(algorithm) << " on " << ranks << " ranks" << (reproducible ? ", reproducible" : "");
      }
    }
  }
}

TEST_P(Allocation, HappensInNoStartedCallInSteadyState) {
  EXPECT_EQ(in_steady_state(2,
                            [](Communicator& world, std::vector<float>& data) {
                              Pending first = start_all_reduce(world, data);
                              Pending second =
                                  start_all_reduce(world, std::span(data).first(10), {.algorithm = Ring{}});
                              first.wait();
                              second.wait();
                            }),
            0);
}

TEST_P(Allocation, HappensInNoOtherCallInSteadyState) {
  EXPECT_EQ(in_steady_state(3,
                            [](Communicator& world, std::vector<float>& data) {
                              const std::span<float> all(data);
                              reduce(world, all.first(1000));
                              broadcast(world, all);
                              const bool is_source = world.rank() == Rank{1};
                              broadcast(world, all, {.role = is_source ? BroadcastRole::source : BroadcastRole::sink});
                              all_gather(world, all.first(100), all.subspan(1000, 300));
                              reduce_scatter(world, all.first(300), all.subspan(1000, 100));
                              gather(world, all.first(10),
                                     world.rank() == Rank{0} ? all.subspan(100, 30) : all.first(0));
                              all_to_all(world, all.first(300), all.subspan(1000, 300));
                              barrier(world);
                            }),
            0);
}

}  // namespace
}  // namespace tutti::testing
