// The parameters of a model outside of torch: named arrays of some shape and element type, in a fixed order, with
// memory of their own. Checkpoints, federated clients and coordinators hold and exchange them.
//
//   ParameterSet set;
//   set.add("hidden.bias", {3}, values);                        // copied
//   set.add({.name = "hidden.weight", .shape = {3, 2}});        // zeros, of float32
//   set.at("hidden.bias").array();                              // an Array; of a const set a ConstArray
//   for (NamedArray& its : set) fmt::print("{} {}\n", its.name(), to_string(its.shape()));
//
// To move a set copies nothing, and its arrays stay where they are. To copy one copies all of its memory. Threads: as
// for a std::vector.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/array.hpp>
#include <tutti/base/data_type.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {

struct ParameterLayout {
  std::string name;
  Shape shape = {};  // of all dimensions; that of a single number has none
  DataType type = DataType::float32;

  friend bool operator==(const ParameterLayout&, const ParameterLayout&) = default;
};

// Of an array of this layout. A UsageError for a shape that no array has.
std::size_t byte_count(const ParameterLayout& layout);

// "float32 [3, 2]", without the name.
std::string to_string(const ParameterLayout& layout);

namespace detail {

// Zeros at first, and aligned to kAlignment.
class AlignedBytes {
 public:
  static constexpr std::size_t kAlignment = 64;

  explicit AlignedBytes(std::size_t size);
  AlignedBytes(const AlignedBytes& other);
  AlignedBytes(AlignedBytes&& other) noexcept;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };

  std::unique_ptr<void, Free> block_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace detail

// One array of a set. Its elements may be changed; its name, shape and type may not.
class NamedArray {
 public:
  const ParameterLayout& layout() const { return layout_; }
  const std::string& name() const { return layout_.name; }
  const Shape& shape() const { return layout_.shape; }
  DataType type() const { return layout_.type; }
  std::size_t length() const { return memory_.size() / size_of(type()); }

  Array array() { return {memory_.data(), length(), type()}; }
  ConstArray array() const { return {memory_.data(), length(), type()}; }
  std::span<std::byte> bytes() { return {memory_.data(), memory_.size()}; }
  std::span<const std::byte> bytes() const { return {memory_.data(), memory_.size()}; }

  // Its elements as what they are; another type is a UsageError.
  template <Element T>
  std::span<T> values() {
    require_type(data_type_of<T>);
    return {reinterpret_cast<T*>(memory_.data()), length()};
  }
  template <Element T>
  std::span<const T> values() const {
    require_type(data_type_of<T>);
    return {reinterpret_cast<const T*>(memory_.data()), length()};
  }

 private:
  friend class ParameterSet;

  NamedArray(ParameterLayout layout, std::size_t bytes);
  void require_type(DataType wanted) const;

  ParameterLayout layout_;
  detail::AlignedBytes memory_;
};

class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = default;
  ParameterSet(ParameterSet&&) noexcept = default;
  ParameterSet& operator=(const ParameterSet& other) { return *this = ParameterSet(other); }
  ParameterSet& operator=(ParameterSet&&) noexcept = default;

  // Adds an array at the end. A name that is there already, a shape that no array has, and bytes or elements that are
  // more or fewer than the shape's are UsageErrors, and change nothing. The memory, aligned to 64 bytes, stays where it
  // is as long as the set lives, wherever that is moved to.
  Array add(ParameterLayout layout);  // zeros
  Array add(ParameterLayout layout, std::span<const std::byte> bytes);
  Array add(std::string name, Shape shape, ConstArray values);

  std::size_t size() const { return arrays_.size(); }
  bool empty() const { return arrays_.empty(); }
  std::size_t bytes() const;  // of all arrays together

  // In the order they were added. References and iterators hold until the next `add`.
  NamedArray& operator[](std::size_t index) { return arrays_[index]; }
  const NamedArray& operator[](std::size_t index) const { return arrays_[index]; }
  auto begin() { return arrays_.begin(); }
  auto end() { return arrays_.end(); }
  auto begin() const { return arrays_.begin(); }
  auto end() const { return arrays_.end(); }

  // By name, in O(log n): nothing, or a UsageError with the nearest name, where there is none.
  NamedArray* find(std::string_view name);
  const NamedArray* find(std::string_view name) const;
  NamedArray& at(std::string_view name);
  const NamedArray& at(std::string_view name) const;
  std::vector<std::string> names() const;

  // Whether both have the same names, shapes and types in the same order.
  bool same_layout(const ParameterSet& other) const;
  // How the other's layout differs from this one, which is the expected one; empty where it does not:
  // `"hidden.weight" is float32 [2, 3], expected float32 [3, 2]`.
  std::string layout_difference(const ParameterSet& other) const;

  // The same layout and the same bits: a NaN equals itself, and 0 is not -0.
  friend bool operator==(const ParameterSet& a, const ParameterSet& b);

 private:
  std::vector<NamedArray> arrays_;
  std::map<std::string, std::size_t, std::less<>> indices_;
};

// Fills `to` with an array of the same shape and type, whatever its name. A UsageError names `from` where it is of
// others.
void copy_array(const NamedArray& from, NamedArray& to);

// Fills each array of `to` with the one that has its name, after the prefix, in `from`. A UsageError names the first
// that is missing there or is of another shape or type; what comes before it is filled by then.
void copy_named(const ParameterSet& from, ParameterSet& to, std::string_view prefix = {});

}  // namespace tutti
