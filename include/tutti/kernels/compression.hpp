// The loops of gradient compression: the largest values of an array, 16-bit copies of arrays, and matrices as products
// of narrow ones.
//
//   SparseGradient largest = top_k(gradient, gradient.size() / 100);
//   add_to(sum, largest);                                                  // sum += largest, the rest as it was
//   convert(gradients, halves);                                            // float32 to float16, say, or back
//   matrix_times<float>(m, shape, q, p);                                   // P = M Q
//
// Every sum has one order, whatever the CPU: the same bits everywhere. Any thread may call any function; an array that
// is written overlaps no other.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/base/array.hpp>

namespace tutti {

// --- the largest values ---

// Some values of an array, and where they stood.
template <std::floating_point T>
struct BasicSparseGradient {
  std::vector<std::uint32_t> indices;
  std::vector<T> values;
  std::size_t original_len = 0;

  friend bool operator==(const BasicSparseGradient&, const BasicSparseGradient&) = default;
};
using SparseGradient = BasicSparseGradient<float>;
using SparseGradient64 = BasicSparseGradient<double>;

// The k values of the largest magnitude, in the order of the array; all of them where there are fewer. Of equal ones
// those that stand first are taken. A NaN counts as larger than anything. In linear time; a UsageError for arrays of
// 2^32 elements and more.
SparseGradient top_k(std::span<const float> array, std::size_t k);
SparseGradient64 top_k(std::span<const double> array, std::size_t k);

// Adds the values to those of `dense` where they stood. A UsageError, and nothing is added, where the array had another
// length, an index is not in it, or there are not as many indices as values.
void add_to(std::span<float> dense, const SparseGradient& sparse);
void add_to(std::span<double> dense, const SparseGradient64& sparse);

// --- 16 bits ---

// float32 or float64 to float16 or bfloat16, rounded as base/half.hpp does (float64 by way of float32), or back,
// exactly. A UsageError for other types and different lengths.
void convert(ConstArray from, Array to);

// What a worker sends of its gradients in 16 bits, and what remains with it.
struct NarrowArrays {
  ConstArray gradients;  // float32 or float64
  ConstArray remains;    // of the same type, as what is left; finite
  Array sent;            // float16 or bfloat16
  Array left;
};
// sent = gradients + remains, rounded, and no larger than `most`, which the 16-bit type can hold; left = what that
// took. A gradient that is infinite or no number is sent as it is, and its remains stay.
void narrow(const NarrowArrays& arrays, double most);

// --- matrices ---

// A matrix M, and P and Q of which P Q^T has its shape. M lies row by row, P and Q column by column.
struct LowRankShape {
  std::size_t rows = 0;     // of M and P
  std::size_t columns = 0;  // of M; rows of Q
  std::size_t rank = 0;     // columns of P and Q
};

// For float and double. A UsageError where an array is of another length than its shape says.
template <std::floating_point T>
void matrix_times(std::span<const T> m, const LowRankShape& shape, std::span<const T> q, std::span<T> p);  // P = M Q
template <std::floating_point T>
void transposed_times(std::span<const T> m, const LowRankShape& shape, std::span<const T> p,
                      std::span<T> q);  // Q = M^T P
template <std::floating_point T>
void outer_product(std::span<const T> p, const LowRankShape& shape, std::span<const T> q,
                   std::span<T> m);  // M = P Q^T
template <std::floating_point T>
void subtract_outer_product(std::span<const T> p, const LowRankShape& shape, std::span<const T> q,
                            std::span<T> m);  // M -= P Q^T

// Columns, of `rows` each and one behind the other, become orthogonal and of length 1, in their order. One that depends
// on those before it becomes zero; a NaN or infinity makes NaNs of its column and of those after it that are not zero.
template <std::floating_point T>
void orthonormalise(std::span<T> columns, std::size_t rows);

}  // namespace tutti
