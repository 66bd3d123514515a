// What a thread draws from libtorch, named by numbers: dropout of every kind, rand, normal_, randperm and the like draw
// the same on any thread, whatever other threads draw at the time.
//
//   RandomDraws draws({.seed = 7, .step = step, .shard = shard, .place = node});
//   loss = net.forward(rows);  loss.backward();
//
// libtorch's default generator belongs to all threads together, so what each draws differs from run to run. While a
// scope lives, its thread draws from a generator of its own instead. That starts at a state which the key alone gives:
// a second scope of the same key draws the same again. Scopes nest; the outer one goes on where it stood. A generator
// that the caller passes is used as ever, and outside of any scope libtorch is as it always was.
//
// libtorch carries out a backward pass over CPU tensors on the thread that asks for it, so draws there are the scope's
// too. Work that is handed to other threads (torch::jit::fork, workers of a data loader) is outside; it may have scopes
// of its own.
//
// Threads: a scope ends on the thread it began on, after those that began in it. The first scope of a process tells
// libtorch once where to draw. Until somebody draws, a scope costs nanoseconds; then a few microseconds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace at {
struct Generator;
}

namespace tutti {

struct RandomDrawsKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t shard = 0;  // the logical shard, never the thread or replica that computes it
  std::uint64_t place = 0;  // in the graph
};

class RandomDraws {
 public:
  explicit RandomDraws(const RandomDrawsKey& key);
  RandomDraws(const RandomDraws&) = delete;
  RandomDraws& operator=(const RandomDraws&) = delete;
  ~RandomDraws();

  const RandomDrawsKey& key() const { return key_; }

  // The innermost scope of this thread; null outside of any.
  static const RandomDraws* current();

  // 0, 1, 2, ...: for what opens scopes of its own in this one, so that it draws something else each time.
  std::uint64_t next_inside() const { return inside_++; }

  // What the scope draws from: for whatever takes a generator. Valid as long as the scope.
  const at::Generator& generator();

 private:
  RandomDrawsKey key_;
  RandomDraws* outer_;
  std::size_t depth_;     // how many scopes of this thread are around this one
  bool started_ = false;  // at the first draw the generator is set to its start
  mutable std::uint64_t inside_ = 0;
};

}  // namespace tutti
