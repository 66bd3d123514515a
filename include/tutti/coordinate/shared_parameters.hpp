// Parameters that several threads read and change at the same time, without locks and without versions ("Hogwild": Niu
// et al., 2011): for gradients so sparse that two threads seldom meet at a number, and for models that bear it where
// they do.
//
//   SharedParameters shared(parameters);
//   // on each worker's thread, for a sparse model:
//   const SharedArray<float> weights = shared.array<float>("weights");
//   for (const auto& [index, value] : row) margin += value * weights.load(index);
//   for (const auto& [index, value] : row) weights.add(index, -lr * slope * value);
//   // for a dense one:
//   shared.read(mine);
//   shared.add(gradients_of(mine), -lr);
//
// Each number is read and written whole, by relaxed atomic access, and that is all that is promised:
//
// - An add is a read and then a write. Of two threads that add to one number at the same time one may be lost; what was
//   added by one thread alone, or one after the other, never is.
// - What is read together may be of different times: of another thread's add some numbers may be new and others old.
//   There is no order between numbers.
// - What was done before a thread was joined, or told by other means that synchronise, is seen whole.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

#include <tutti/base/data_type.hpp>
#include <tutti/base/parameter_set.hpp>

namespace tutti {

// One array of them, for as long as they live. Indices are below size(), which nobody checks.
template <Element T>
class SharedArray {
 public:
  explicit SharedArray(std::span<T> numbers) : numbers_(numbers) {}

  std::size_t size() const { return numbers_.size(); }
  T load(std::size_t index) const { return std::atomic_ref<T>(numbers_[index]).load(std::memory_order_relaxed); }
  void store(std::size_t index, T value) const {
    std::atomic_ref<T>(numbers_[index]).store(value, std::memory_order_relaxed);
  }
  void add(std::size_t index, T value) const {
    if constexpr (std::integral<T>) {
      T sum;
      (void)__builtin_add_overflow(load(index), value, &sum);  // it wraps around
      store(index, sum);
    } else if constexpr (std::floating_point<T>) {
      store(index, load(index) + value);
    } else {
      store(index, T::from_float(load(index).to_float() + value.to_float()));
    }
  }

 private:
  static_assert(std::atomic_ref<T>::is_always_lock_free);

  std::span<T> numbers_;
};

// Any thread may call any of these, at any time.
class SharedParameters {
 public:
  // A UsageError for numbers that are not finite.
  explicit SharedParameters(ParameterSet parameters);

  // A copy of all numbers. A UsageError where `into` has another layout.
  ParameterSet read() const;
  void read(ParameterSet& into) const;

  // Each number plus `factor` times that of the set, in the type of its array; integers get the integer nearest to the
  // product, and their sums wrap around.
  // A UsageError, and nothing is touched, for another layout, for numbers or a factor that are not finite, and for a
  // factor beyond the numbers of a type. Products and sums may be beyond them: they are infinite then.
  void add(const ParameterSet& deltas, double factor = 1) const;

  // By name, or by its index in the set. A UsageError where there is none, or of another type.
  template <Element T>
  SharedArray<T> array(std::string_view name) const {
    return SharedArray<T>(parameters_.at(name).values<T>());
  }
  template <Element T>
  SharedArray<T> array(std::size_t index) const {
    return SharedArray<T>(at(index).values<T>());
  }

 private:
  NamedArray& at(std::size_t index) const;

  mutable ParameterSet parameters_;  // its numbers are touched by atomic access alone
};

}  // namespace tutti
