// Memory of somebody else's with a length and an element type: what collectives take. Made from any contiguous range of
// elements; it owns nothing.
//
//   std::vector<float> gradients(1000);
//   all_reduce(world, gradients);                     // Array, by conversion
//   all_gather(world, std::span(mine), everybody);    // ConstArray, Array
#pragma once

#include <concepts>
#include <cstddef>
#include <ranges>
#include <span>

#include <tutti/base/data_type.hpp>

namespace tutti {

namespace detail {

template <typename R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    Element<std::remove_cv_t<std::ranges::range_value_t<R>>>;

template <typename R>
concept WritableElementRange =
    ElementRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

}  // namespace detail

class Array {
 public:
  Array() = default;
  Array(void* data, std::size_t length, DataType type)
      : data_(static_cast<std::byte*>(data)), length_(length), type_(type) {}

  // A temporary that owns its elements cannot be meant.
  template <detail::WritableElementRange R>
  requires std::ranges::borrowed_range<R> Array(R&& range)  // NOLINT(google-explicit-constructor)
      : Array(std::ranges::data(range), std::ranges::size(range), data_type_of<std::ranges::range_value_t<R>>) {}

  std::byte* data() const { return data_; }
  std::size_t length() const { return length_; }
  DataType type() const { return type_; }
  std::size_t bytes() const { return length_ * size_of(type_); }

  // `count` elements from `first` on.
  Array slice(std::size_t first, std::size_t count) const { return {data_ + first * size_of(type_), count, type_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t length_ = 0;
  DataType type_ = DataType::float32;
};

class ConstArray {
 public:
  ConstArray() = default;
  ConstArray(const void* data, std::size_t length, DataType type)
      : data_(static_cast<const std::byte*>(data)), length_(length), type_(type) {}
  ConstArray(Array array)
      : ConstArray(array.data(), array.length(), array.type()) {}  // NOLINT(google-explicit-constructor)

  template <detail::ElementRange R>
  requires std::ranges::borrowed_range<R> &&
      (!std::same_as<std::remove_cvref_t<R>, Array>)&&(!std::same_as<std::remove_cvref_t<R>, ConstArray>)
          ConstArray(R&& range)  // NOLINT(google-explicit-constructor)
      : ConstArray(std::ranges::data(range), std::ranges::size(range),
                   data_type_of<std::remove_cv_t<std::ranges::range_value_t<R>>>) {}

  const std::byte* data() const { return data_; }
  std::size_t length() const { return length_; }
  DataType type() const { return type_; }
  std::size_t bytes() const { return length_ * size_of(type_); }

  ConstArray slice(std::size_t first, std::size_t count) const {
    return {data_ + first * size_of(type_), count, type_};
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t length_ = 0;
  DataType type_ = DataType::float32;
};

}  // namespace tutti
