#include <tutti/kernels/compression.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// --- the largest values ---

// Of the bits of a number without its sign, which are in the order of the magnitudes, infinity before the NaNs.
template <typename T>
struct Magnitude {
  using Key = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static constexpr Key kInfinity = std::bit_cast<Key>(std::numeric_limits<T>::infinity());

  static Key of(T value) {
    const Key key = std::bit_cast<Key>(value) & (std::numeric_limits<Key>::max() >> 1);
    return key > kInfinity ? kInfinity + 1 : key;
  }
};

// Which keys are the k largest, 0 < k < n: those above `threshold`, and of those equal to it so many.
template <typename Key>
struct Cut {
  Key threshold = 0;
  std::size_t ties = 0;
};

// Counts keys by their upper bits; only those that share them with the k-th largest have to be looked at closer.
template <typename T, typename Key = typename Magnitude<T>::Key>
Cut<Key> cut_after(std::span<const T> array, std::size_t k) {
  constexpr int kUpperBits = 12;
  constexpr int kShift = static_cast<int>(sizeof(Key)) * 8 - 1 - kUpperBits;
  std::vector<std::uint32_t> counts(std::size_t{1} << kUpperBits);
  for (const T value : array) ++counts[Magnitude<T>::of(value) >> kShift];
  std::size_t bin = counts.size() - 1;
  std::size_t left = k;
  while (counts[bin] < left) left -= counts[bin--];

  std::vector<Key> close(counts[bin] + std::size_t{1});  // every key is written, and kept where it belongs there
  std::size_t found = 0;
  for (const T value : array) {
    const Key key = Magnitude<T>::of(value);
    close[found] = key;
    found += (key >> kShift) == bin ? 1 : 0;
  }
  close.pop_back();
  const auto last = close.begin() + static_cast<std::ptrdiff_t>(left - 1);
  std::nth_element(close.begin(), last, close.end(), std::greater<>{});
  // What stands before it is as large or larger.
  return {*last, static_cast<std::size_t>(std::count(close.begin(), last + 1, *last))};
}

template <typename T>
BasicSparseGradient<T> top_k_of(std::span<const T> array, std::size_t k) {
  if (array.size() > std::numeric_limits<std::uint32_t>::max())
    throw UsageError(
        fmt::format("the largest values of an array are found among less than 2^32, found {}", array.size()));
  BasicSparseGradient<T> result{.indices = {}, .values = {}, .original_len = array.size()};
  k = std::min(k, array.size());
  if (k == 0) return result;
  result.indices.resize(k + 1);
  std::size_t taken = 0;
  if (k == array.size()) {
    for (; taken < k; ++taken) result.indices[taken] = static_cast<std::uint32_t>(taken);
  } else {
    auto [threshold, ties] = cut_after(array, k);
    for (std::size_t i = 0; i < array.size(); ++i) {
      const auto key = Magnitude<T>::of(array[i]);
      const std::size_t is_tie = static_cast<std::size_t>(key == threshold) & static_cast<std::size_t>(ties > 0);
      result.indices[taken] = static_cast<std::uint32_t>(i);
      taken += is_tie | static_cast<std::size_t>(key > threshold);
      ties -= is_tie;
    }
  }
  result.indices.pop_back();
  result.values.reserve(k);
  for (const std::uint32_t index : result.indices) result.values.push_back(array[index]);
  return result;
}

template <typename T>
void add_sparse(std::span<T> dense, const BasicSparseGradient<T>& sparse) {
  if (sparse.original_len != dense.size()) {
    throw UsageError(fmt::format("a sparse gradient of {} elements cannot be added to {} elements", sparse.original_len,
                                 dense.size()));
  }
  if (sparse.indices.size() != sparse.values.size()) {
    throw UsageError(fmt::format("a sparse gradient has as many indices as values, found {} and {}",
                                 sparse.indices.size(), sparse.values.size()));
  }
  for (const std::uint32_t index : sparse.indices) {
    if (index >= dense.size())
      throw UsageError(
          fmt::format("a sparse gradient of {} elements has none of the index {}", sparse.original_len, index));
  }
  for (std::size_t i = 0; i < sparse.indices.size(); ++i) dense[sparse.indices[i]] += sparse.values[i];
}

// --- 16 bits: the arithmetic of base/half.hpp, without branches ---

struct Float16Bits {
  static std::uint16_t from_float(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value);
    const std::int32_t magnitude = bits & 0x7fffffff;
    const std::int32_t normal = (magnitude - 0x38000000 + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
    // Next to 0.5 the float adder rounds at 2^-24, the last bit of a subnormal half.
    const std::int32_t subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    const std::int32_t infinite_or_nan = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const std::int32_t small = magnitude < 0x38800000 ? subnormal : normal;
    const std::int32_t result = magnitude >= 0x477ff000 ? infinite_or_nan : small;
    return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000));
  }

  static float to_float(std::uint16_t half) {
    const std::int32_t magnitude = half & 0x7fff;
    const std::int32_t normal = (magnitude << 13) + (112 << 23);
    const std::int32_t infinite_or_nan = normal + (112 << 23);
    // Read as a normal number of the smallest exponent, a subnormal one is too large by 2^-14 and otherwise exact.
    const std::int32_t subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(normal + (1 << 23)) - 0x1p-14f);
    const std::int32_t small = magnitude < 0x0400 ? subnormal : normal;
    const std::int32_t result = magnitude >= 0x7c00 ? infinite_or_nan : small;
    return std::bit_cast<float>(static_cast<std::uint32_t>(result) | (static_cast<std::uint32_t>(half & 0x8000) << 16));
  }
};

struct BFloat16Bits {
  static std::uint16_t from_float(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7fc0u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }

  static float to_float(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }
};

template <typename T>
const T* elements(ConstArray array) {
  return reinterpret_cast<const T*>(array.data());
}
template <typename T>
T* elements(Array array) {
  return reinterpret_cast<T*>(array.data());
}

bool is_wide(DataType type) { return type == DataType::float32 || type == DataType::float64; }
bool is_half(DataType type) { return type == DataType::float16 || type == DataType::bfloat16; }

// f(T of the wide type, the arithmetic of the 16-bit one).
template <typename F>
void with_types(DataType wide, DataType half, F f) {
  const auto with_half = [&]<typename T>(std::type_identity<T> type) {
    half == DataType::float16 ? f(type, Float16Bits{}) : f(type, BFloat16Bits{});
  };
  wide == DataType::float32 ? with_half(std::type_identity<float>{}) : with_half(std::type_identity<double>{});
}

template <typename Half, typename T>
void narrow_loop(const NarrowArrays& arrays, T most) {
  constexpr T kLargest = std::numeric_limits<T>::max();
  const T* __restrict gradients = elements<T>(arrays.gradients);
  const T* __restrict remains = elements<T>(arrays.remains);
  auto* __restrict sent = elements<std::uint16_t>(arrays.sent);
  T* __restrict left = elements<T>(arrays.left);
  const std::size_t length = arrays.gradients.length();
  for (std::size_t i = 0; i < length; ++i) {
    const T gradient = gradients[i];
    const T kept = remains[i];
    T whole = gradient + kept;
    whole = whole > kLargest ? kLargest : whole;
    whole = whole < -kLargest ? -kLargest : whole;
    T within = whole > most ? most : whole;
    within = within < -most ? -most : within;
    const bool is_finite = gradient - gradient == T{0};
    const std::uint16_t half = Half::from_float(static_cast<float>(is_finite ? within : gradient));
    sent[i] = half;
    const T rest = whole - static_cast<T>(Half::to_float(half));
    left[i] = is_finite ? rest : kept;
  }
}

// --- matrices ---

// So many sums side by side, whatever the CPU's vectors hold, so that the order is the same on all.
template <typename Sum, typename T>
Sum dot(const T* a, const T* b, std::size_t length) {
  constexpr std::size_t kLanes = 64 / sizeof(Sum);
  Sum sums[kLanes] = {};
  std::size_t i = 0;
  for (; length - i >= kLanes; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
  for (std::size_t lane = 0; i + lane < length; ++lane)
    sums[lane] += static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

template <typename T>
void add_multiple(T* __restrict to, T factor, const T* __restrict of, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) to[i] += factor * of[i];
}

template <typename T>
T largest_magnitude(const T* values, std::size_t length) {
  T largest = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const T magnitude = std::abs(values[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest;
}

void refuse_unless_shaped(const LowRankShape& shape, std::size_t m, std::size_t p, std::size_t q) {
  if (m != shape.rows * shape.columns || p != shape.rows * shape.rank || q != shape.columns * shape.rank) {
    throw UsageError(fmt::format("a matrix of {} x {} and its factors of rank {} were given {}, {} and {} elements",
                                 shape.rows, shape.columns, shape.rank, m, p, q));
  }
}

}  // namespace

SparseGradient top_k(std::span<const float> array, std::size_t k) { return top_k_of(array, k); }
SparseGradient64 top_k(std::span<const double> array, std::size_t k) { return top_k_of(array, k); }

void add_to(std::span<float> dense, const SparseGradient& sparse) { add_sparse(dense, sparse); }
void add_to(std::span<double> dense, const SparseGradient64& sparse) { add_sparse(dense, sparse); }

void convert(ConstArray from, Array to) {
  if (from.length() != to.length()) {
    throw UsageError(
        fmt::format("converting {} elements: expected room for as many, found {}", from.length(), to.length()));
  }
  if (is_wide(from.type()) && is_half(to.type())) {
    return with_types(from.type(), to.type(), [&]<typename T, typename Half>(std::type_identity<T>, Half) {
      const T* __restrict wide = elements<T>(from);
      auto* __restrict half = elements<std::uint16_t>(to);
      for (std::size_t i = 0; i < from.length(); ++i) half[i] = Half::from_float(static_cast<float>(wide[i]));
    });
  }
  if (is_half(from.type()) && is_wide(to.type())) {
    return with_types(to.type(), from.type(), [&]<typename T, typename Half>(std::type_identity<T>, Half) {
      const auto* __restrict half = elements<std::uint16_t>(from);
      T* __restrict wide = elements<T>(to);
      for (std::size_t i = 0; i < from.length(); ++i) wide[i] = static_cast<T>(Half::to_float(half[i]));
    });
  }
  throw UsageError(fmt::format("float32 and float64 are converted to float16 and bfloat16 and back, not {} to {}",
                               to_string(from.type()), to_string(to.type())));
}

void narrow(const NarrowArrays& arrays, double most) {
  const auto& [gradients, remains, sent, left] = arrays;
  if (!is_wide(gradients.type()) || remains.type() != gradients.type() || left.type() != gradients.type() ||
      !is_half(sent.type())) {
    throw UsageError(fmt::format("{} gradients, {} remains and {} left cannot be sent as {}",
                                 to_string(gradients.type()), to_string(remains.type()), to_string(left.type()),
                                 to_string(sent.type())));
  }
  if (remains.length() != gradients.length() || sent.length() != gradients.length() ||
      left.length() != gradients.length()) {
    throw UsageError(fmt::format("{} gradients do not go with {} remains, {} to send and {} left", gradients.length(),
                                 remains.length(), sent.length(), left.length()));
  }
  with_types(gradients.type(), sent.type(), [&]<typename T, typename Half>(std::type_identity<T>, Half) {
    narrow_loop<Half, T>(arrays, static_cast<T>(most));
  });
}

template <std::floating_point T>
void matrix_times(std::span<const T> m, const LowRankShape& shape, std::span<const T> q, std::span<T> p) {
  refuse_unless_shaped(shape, m.size(), p.size(), q.size());
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      p[k * shape.rows + row] = dot<T>(m.data() + row * shape.columns, q.data() + k * shape.columns, shape.columns);
}

template <std::floating_point T>
void transposed_times(std::span<const T> m, const LowRankShape& shape, std::span<const T> p, std::span<T> q) {
  refuse_unless_shaped(shape, m.size(), p.size(), q.size());
  std::ranges::fill(q, T{0});
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_multiple(q.data() + k * shape.columns, p[k * shape.rows + row], m.data() + row * shape.columns,
                   shape.columns);
}

template <std::floating_point T>
void outer_product(std::span<const T> p, const LowRankShape& shape, std::span<const T> q, std::span<T> m) {
  refuse_unless_shaped(shape, m.size(), p.size(), q.size());
  std::ranges::fill(m, T{0});
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_multiple(m.data() + row * shape.columns, p[k * shape.rows + row], q.data() + k * shape.columns,
                   shape.columns);
}

template <std::floating_point T>
void subtract_outer_product(std::span<const T> p, const LowRankShape& shape, std::span<const T> q, std::span<T> m) {
  refuse_unless_shaped(shape, m.size(), p.size(), q.size());
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_multiple(m.data() + row * shape.columns, -p[k * shape.rows + row], q.data() + k * shape.columns,
                   shape.columns);
}

// Gram and Schmidt's way, twice over each column, after which rounding has left nothing of those before it.
template <std::floating_point T>
void orthonormalise(std::span<T> columns, std::size_t rows) {
  if (rows == 0) return;
  if (columns.size() % rows != 0)
    throw UsageError(fmt::format("{} elements are no columns of {}", columns.size(), rows));
  // What is left of a column that depends on the others, by rounding.
  constexpr double kNothing = 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (std::size_t first = 0; first < columns.size(); first += rows) {
    T* column = columns.data() + first;
    // So that no square overflows or vanishes.
    const T scale = largest_magnitude(column, rows);
    if (scale == T{0}) continue;
    for (std::size_t i = 0; i < rows; ++i) column[i] /= scale;
    const double before = std::sqrt(dot<double>(column, column, rows));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < first; other += rows) {
        const T* earlier = columns.data() + other;
        add_multiple(column, static_cast<T>(-dot<double>(column, earlier, rows)), earlier, rows);
      }
    }
    const double length = std::sqrt(dot<double>(column, column, rows));
    if (length <= kNothing * before) {
      std::fill_n(column, rows, T{0});
    } else {
      for (std::size_t i = 0; i < rows; ++i) column[i] = static_cast<T>(static_cast<double>(column[i]) / length);
    }
  }
}

template void matrix_times(std::span<const float>, const LowRankShape&, std::span<const float>, std::span<float>);
template void matrix_times(std::span<const double>, const LowRankShape&, std::span<const double>, std::span<double>);
template void transposed_times(std::span<const float>, const LowRankShape&, std::span<const float>, std::span<float>);
template void transposed_times(std::span<const double>, const LowRankShape&, std::span<const double>,
                               std::span<double>);
template void outer_product(std::span<const float>, const LowRankShape&, std::span<const float>, std::span<float>);
template void outer_product(std::span<const double>, const LowRankShape&, std::span<const double>, std::span<double>);
template void subtract_outer_product(std::span<const float>, const LowRankShape&, std::span<const float>,
                                     std::span<float>);
template void subtract_outer_product(std::span<const double>, const LowRankShape&, std::span<const double>,
                                     std::span<double>);
template void orthonormalise(std::span<float>, std::size_t);
template void orthonormalise(std::span<double>, std::size_t);

}  // namespace tutti
