// The limit: as many threads as ranks, each summing its slice of everybody's array and writing the sum to everybody's.
// No calls, no agreement, no deadlines: nothing but the loop and a barrier between one sum and the next. What an
// all-reduce of shared memory cannot be faster than.
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/error.hpp>

#include "peers/peer.hpp"

namespace tutti::bench {
namespace {

// Spins; gives up its core only where there are fewer cores than threads.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads)
      : threads_(threads), yields_(static_cast<unsigned>(threads) > std::thread::hardware_concurrency()) {}

  void wait() {
    const unsigned round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) {
      if (stopped_.load(std::memory_order_relaxed)) throw std::runtime_error("another rank failed");
      if (yields_) std::this_thread::yield();
    }
  }

  // Ends all waits, so that a rank that fails does not leave the others spinning.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

 private:
  const int threads_;
  const bool yields_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
  alignas(64) std::atomic<bool> stopped_{false};
};

void sum_two(float* __restrict a, float* __restrict b, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    const float s = a[i] + b[i];
    a[i] = s;
    b[i] = s;
  }
}

void sum_four(float* __restrict a, float* __restrict b, float* __restrict c, float* __restrict d, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    const float s = (a[i] + b[i]) + (c[i] + d[i]);
    a[i] = s;
    b[i] = s;
    c[i] = s;
    d[i] = s;
  }
}

// Any number, a block at a time that stays in the nearest cache.
void sum_many(std::span<float* const> arrays, std::size_t first, std::size_t length) {
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> sum;
  for (std::size_t begin = first; begin < first + length; begin += kBlock) {
    const std::size_t count = std::min(kBlock, first + length - begin);
    for (std::size_t i = 0; i < count; ++i) sum[i] = arrays[0][begin + i];
    for (const float* array : arrays.subspan(1))
      for (std::size_t i = 0; i < count; ++i) sum[i] += array[begin + i];
    for (float* array : arrays)
      for (std::size_t i = 0; i < count; ++i) array[begin + i] = sum[i];
  }
}

void sum_slice(std::span<float* const> arrays, std::size_t first, std::size_t length) {
  switch (arrays.size()) {
    case 2: sum_two(arrays[0] + first, arrays[1] + first, length); break;
    case 4: sum_four(arrays[0] + first, arrays[1] + first, arrays[2] + first, arrays[3] + first, length); break;
    default: sum_many(arrays, first, length);
  }
}

struct World {
  explicit World(int ranks) : barrier(ranks), arrays(static_cast<std::size_t>(ranks)) {}

  SpinBarrier barrier;
  std::vector<float*> arrays;
  std::uint64_t agreed = 0;
  std::mutex mutex;
  std::exception_ptr failure;
};

void run_rank(World& world, int rank, const PeerRequest& request) {
  const int ranks = static_cast<int>(world.arrays.size());
  Slice slice;
  measure_peer(request, {.engine = "limit",
                         .algorithm = "direct",
                         .rank = rank,
                         .ranks = ranks,
                         .use_array =
                             [&](std::span<float> array) {
                               // Slices begin on cache lines: no line is written by two threads.
                               constexpr std::size_t kLine = 64 / sizeof(float);
                               const Slice lines = chunk((array.size() + kLine - 1) / kLine, ranks, rank);
                               slice.first = std::min(lines.first * kLine, array.size());
                               slice.count = std::min(lines.end() * kLine, array.size()) - slice.first;
                               world.arrays[static_cast<std::size_t>(rank)] = array.data();
                             },
                         .all_reduce =
                             [&] {
                               sum_slice(world.arrays, slice.first, slice.count);
                               world.barrier.wait();
                             },
                         .connect = {},
                         .agree =
                             [&](std::uint64_t of_rank_0) {
                               if (rank == 0) world.agreed = of_rank_0;
                               world.barrier.wait();
                               const std::uint64_t agreed = world.agreed;
                               world.barrier.wait();
                               return agreed;
                             }});
}

void run_world(int ranks, const PeerRequest& request) {
  World world(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_rank(world, rank, request);
        } catch (...) {
          const std::lock_guard lock(world.mutex);
          if (!world.failure) world.failure = std::current_exception();
          world.barrier.stop();
        }
      });
    }
  }
  if (world.failure) std::rethrow_exception(world.failure);
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_peer("limit_all_reduce", argc, argv, [](const tutti::bench::PeerRequest& request) {
    if (request.ping_pong) throw tutti::UsageError("--ping-pong: the limit is one of all-reduces");
    for (const int ranks : request.ranks) tutti::bench::run_world(ranks, request);
  });
}
