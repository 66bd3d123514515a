// Random numbers that are the same on every platform and with every compiler, drawn from a stream that is named by a
// list of numbers: who draws what never depends on which thread draws first.
//
//   RandomStream draws({seed, step, shard, place});
//   if (draws.uniform() < rate) ...                    // in [0, 1)
//   std::size_t row = draws.below(rows);               // 0 to rows-1, each as likely as the others
//   draws.shuffle(std::span(order));
//   std::shuffle(first, last, draws);                  // also a generator for the standard library
//
// Streams of different lists, of different lengths too, have nothing to do with each other. The state of a stream is
// its list and its position: `RandomStream again(list); again.seek(draws.position());` goes on where `draws` stands.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11): a
// block of bits is a function of its number, so that going ahead costs nothing. Not for secrets. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

namespace tutti {

namespace detail {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key);

}  // namespace detail

class RandomStream {
 public:
  using result_type = std::uint64_t;

  explicit RandomStream(std::span<const std::uint64_t> list);
  explicit RandomStream(std::initializer_list<std::uint64_t> list)
      : RandomStream(std::span<const std::uint64_t>(list.begin(), list.size())) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  // 64 random bits: one draw. Everything below is made of draws.
  result_type operator()() {
    if (position_ / 2 != block_number_) load_block(position_ / 2);
    const std::size_t word = (position_++ % 2) * 2;
    return std::uint64_t{block_[word + 1]} << 32 | block_[word];
  }

  // In [0, 1): a multiple of 2^-53, and of 2^-24. One draw each.
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  float uniform_float() { return static_cast<float>((*this)() >> 40) * 0x1p-24f; }

  // A whole number from 0 to n-1, each exactly as likely. Mostly one draw; n = 0 is a UsageError.
  std::uint64_t below(std::uint64_t n);

  // From the normal distribution of mean 0 and variance 1. An even number of draws, mostly two.
  double normal();

  // Every order equally likely.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t left = values.size(); left > 1; --left) {
      using std::swap;
      swap(values[left - 1], values[static_cast<std::size_t>(below(left))]);
    }
  }

  // How many draws came before the next one; a stream starts over after 2^64.
  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) { position_ = position; }
  void skip(std::uint64_t draws) { position_ += draws; }

 private:
  void load_block(std::uint64_t number);

  detail::PhiloxKey key_;
  std::array<std::uint32_t, 2> upper_counter_;
  detail::PhiloxBlock block_{};
  std::uint64_t block_number_ = std::numeric_limits<std::uint64_t>::max();  // no position is in there
  std::uint64_t position_ = 0;
};

}  // namespace tutti
