// Values to reduce whose result is known, and the memory they lie in.
//
//   PageMemory memory(bytes);
//   std::span<float> array = memory.as<float>();
//   fill(array, rank, first_scale(DataType::float32, ReduceOp::sum));
//   ...
//   first_wrong(std::span<const float>(array), ReduceOp::sum, ranks, scale);     // none
//
// Each element is a small whole number, drawn from its index and its rank, times a power of two: sums are exact, no
// element is zero (some CPUs skip writing zeros over zeros), and a slice in the wrong place shows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include <tutti/base/data_type.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti::cli {

// Whole pages, not touched yet: they come to lie near the thread that fills them.
class PageMemory {
 public:
  explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t kPage = 4096;
    memory_.reset(std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage));
    if (memory_ == nullptr) throw std::bad_alloc();
  }

  std::span<std::byte> bytes() { return {static_cast<std::byte*>(memory_.get()), bytes_}; }

  template <Element T>
  std::span<T> as() {
    return {static_cast<T*>(memory_.get()), bytes_ / sizeof(T)};
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t bytes_;
  std::unique_ptr<void, Free> memory_;
};

namespace detail {

inline constexpr std::size_t kKinds = 5;

// Which of the kinds an element is: scattered, so that neighbours differ.
constexpr std::size_t kind_of(std::size_t index) {
  return ((static_cast<std::uint32_t>(index) * 2654435761u) >> 16) % kKinds;
}

constexpr double contribution(int rank, std::size_t kind) {
  return static_cast<double>((kind + static_cast<std::size_t>(rank)) % kKinds + 1);
}

inline double reduction(ReduceOp op, int ranks, std::size_t kind) {
  double result = contribution(0, kind);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = contribution(rank, kind);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::mean: result += value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
    }
  }
  return op == ReduceOp::mean ? result / ranks : result;
}

template <Element T>
T from_double(double value) {
  if constexpr (requires { T::from_float(0.0f); }) {
    return T::from_float(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <Element T>
double to_double(T value) {
  if constexpr (requires { value.to_float(); }) {
    return static_cast<double>(value.to_float());
  } else {
    return static_cast<double>(value);
  }
}

// How many of a type's bits hold a value's digits.
constexpr int digits(DataType type) {
  switch (type) {
    case DataType::float32: return 24;
    case DataType::float16: return 11;
    case DataType::bfloat16: return 8;
    case DataType::float64:
    case DataType::int32:
    case DataType::int64: break;
  }
  return 53;
}

// Powers of two between which a type is normal, with some room at both ends.
struct Exponents {
  int lowest = 0;
  int highest = 0;
};

constexpr Exponents exponents(DataType type) {
  switch (type) {
    case DataType::float64: return {-1000, 1000};
    case DataType::float32:
    case DataType::bfloat16: return {-110, 110};
    case DataType::float16: return {-13, 15};
    case DataType::int32:
    case DataType::int64: break;
  }
  return {};
}

}  // namespace detail

// What the whole numbers are multiplied by: sums start low, to have far to grow.
inline double first_scale(DataType type, ReduceOp op) {
  return op == ReduceOp::sum ? std::ldexp(1.0, detail::exponents(type).lowest) : 1.0;
}

// After how many all-reduces in place an array should be filled again. Each sum multiplies by the number of ranks;
// integers wrap around and the other operations settle.
inline std::uint64_t calls_per_filling(DataType type, ReduceOp op, int ranks) {
  if (op != ReduceOp::sum || !is_floating(type) || ranks == 1) return std::numeric_limits<std::uint64_t>::max();
  const detail::Exponents range = detail::exponents(type);
  const double doublings = range.highest - range.lowest - std::log2(static_cast<double>(detail::kKinds));
  return std::max<std::uint64_t>(2, static_cast<std::uint64_t>(doublings / std::log2(ranks)));
}

template <Element T>
void fill(std::span<T> array, int rank, double scale) {
  std::array<T, detail::kKinds> values;
  for (std::size_t kind = 0; kind < values.size(); ++kind)
    values[kind] = detail::from_double<T>(detail::contribution(rank, kind) * scale);
  for (std::size_t i = 0; i < array.size(); ++i) array[i] = values[detail::kind_of(i)];
}

struct WrongElement {
  std::size_t index = 0;
  double found = 0;
  double expected = 0;
};

// The first element that is not the reduction of what `fill` gave all ranks.
template <Element T>
std::optional<WrongElement> first_wrong(std::span<const T> array, ReduceOp op, int ranks, double scale) {
  // A mean rounds once. A sum is exact, until very many ranks add in a very short type: then each addition rounds.
  const double ulp = std::ldexp(1.0, -detail::digits(data_type_of<T>));
  const double precision = static_cast<double>(detail::kKinds) * ranks * ulp > 1 ? ranks * ulp : ulp;
  std::array<double, detail::kKinds> expected;
  for (std::size_t kind = 0; kind < expected.size(); ++kind)
    expected[kind] = detail::reduction(op, ranks, kind) * scale;
  for (std::size_t i = 0; i < array.size(); ++i) {
    const double found = detail::to_double(array[i]);
    const double right = expected[detail::kind_of(i)];
    if (!(std::abs(found - right) <= precision * right)) return WrongElement{i, found, right};
  }
  return std::nullopt;
}

}  // namespace tutti::cli
