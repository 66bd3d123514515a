// Small whole numbers whose sums every element type holds exactly, and what a reduction of them must be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <tutti/base/data_type.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti::testing {

// From -15 to 15: sixteen of them add up within bfloat16's 8 bits.
inline int value_of(int rank, std::size_t index, unsigned seed) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u;
  x ^= (index + 1) * 0xbf58476d1ce4e5b9u + seed * 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return static_cast<int>(x % 31) - 15;
}

template <Element T>
T element(double value) {
  if constexpr (std::same_as<T, float16> || std::same_as<T, bfloat16>) {
    return T::from_float(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <Element T>
std::vector<T> values_of(int rank, std::size_t length, unsigned seed) {
  std::vector<T> values(length);
  for (std::size_t i = 0; i < length; ++i) values[i] = element<T>(value_of(rank, i, seed));
  return values;
}

template <Element T>
T reduced_element(int ranks, std::size_t index, ReduceOp op, unsigned seed) {
  int sum = 0;
  int least = 100;
  int most = -100;
  for (int rank = 0; rank < ranks; ++rank) {
    const int value = value_of(rank, index, seed);
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  switch (op) {
    case ReduceOp::sum: return element<T>(sum);
    case ReduceOp::min: return element<T>(least);
    case ReduceOp::max: return element<T>(most);
    case ReduceOp::mean: break;
  }
  if constexpr (std::same_as<T, double>) {
    return static_cast<double>(sum) / ranks;
  } else {
    return element<T>(static_cast<float>(sum) / static_cast<float>(ranks));
  }
}

template <Element T>
std::vector<T> reduced(int ranks, std::size_t length, ReduceOp op, unsigned seed, std::size_t first = 0) {
  std::vector<T> values(length);
  for (std::size_t i = 0; i < length; ++i) values[i] = reduced_element<T>(ranks, first + i, op, seed);
  return values;
}

}  // namespace tutti::testing
