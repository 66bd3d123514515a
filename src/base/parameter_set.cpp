#include <tutti/base/parameter_set.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

#include "json_node.hpp"

namespace tutti {

namespace detail {

// calloc gets zeros from the system where the block is large, and need not write them.
AlignedBytes::AlignedBytes(std::size_t size) : size_(size) {
  if (size == 0) return;
  std::size_t space = size + kAlignment - 1;
  block_.reset(std::calloc(space, 1));
  if (!block_) throw std::bad_alloc();
  void* start = block_.get();
  data_ = static_cast<std::byte*>(std::align(kAlignment, size, start, space));
}

AlignedBytes::AlignedBytes(const AlignedBytes& other) : AlignedBytes(other.size_) {
  std::copy_n(other.data_, size_, data_);
}

AlignedBytes::AlignedBytes(AlignedBytes&& other) noexcept
    : block_(std::move(other.block_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

}  // namespace detail

using detail::in_quotes;

namespace {

bool same_bytes(const NamedArray& a, const NamedArray& b) {
  const std::size_t size = a.bytes().size();
  return size == b.bytes().size() && (size == 0 || std::memcmp(a.bytes().data(), b.bytes().data(), size) == 0);
}

}  // namespace

std::size_t byte_count(const ParameterLayout& layout) {
  const std::optional<std::int64_t> elements = element_count(layout.shape);
  if (!elements) throw UsageError(fmt::format("{}: no array is {}", in_quotes(layout.name), to_string(layout)));
  return static_cast<std::size_t>(*elements) * size_of(layout.type);
}

std::string to_string(const ParameterLayout& layout) {
  return fmt::format("{} {}", to_string(layout.type), to_string(layout.shape));
}

NamedArray::NamedArray(ParameterLayout layout, std::size_t bytes) : layout_(std::move(layout)), memory_(bytes) {}

void NamedArray::require_type(DataType wanted) const {
  if (type() != wanted)
    throw UsageError(fmt::format("{} is of {}, not of {}", in_quotes(name()), to_string(type()), to_string(wanted)));
}

Array ParameterSet::add(ParameterLayout layout) {
  const std::size_t bytes = byte_count(layout);
  if (indices_.contains(layout.name))
    throw UsageError(fmt::format("there is a parameter {} already", in_quotes(layout.name)));
  std::string name = layout.name;
  arrays_.push_back(NamedArray(std::move(layout), bytes));
  try {
    indices_.emplace(std::move(name), arrays_.size() - 1);
  } catch (...) {
    arrays_.pop_back();
    throw;
  }
  return arrays_.back().array();
}

Array ParameterSet::add(ParameterLayout layout, std::span<const std::byte> bytes) {
  if (const std::size_t taken = byte_count(layout); taken != bytes.size()) {
    throw UsageError(fmt::format("{}: {} takes {} bytes, and {} were given", in_quotes(layout.name), to_string(layout),
                                 taken, bytes.size()));
  }
  const Array added = add(std::move(layout));
  std::copy(bytes.begin(), bytes.end(), added.data());
  return added;
}

Array ParameterSet::add(std::string name, Shape shape, ConstArray values) {
  return add({std::move(name), std::move(shape), values.type()}, {values.data(), values.bytes()});
}

std::size_t ParameterSet::bytes() const {
  std::size_t sum = 0;
  for (const NamedArray& array : arrays_) sum += array.bytes().size();
  return sum;
}

const NamedArray* ParameterSet::find(std::string_view name) const {
  const auto found = indices_.find(name);
  return found == indices_.end() ? nullptr : &arrays_[found->second];
}

NamedArray* ParameterSet::find(std::string_view name) {
  return const_cast<NamedArray*>(std::as_const(*this).find(name));
}

const NamedArray& ParameterSet::at(std::string_view name) const {
  if (const NamedArray* found = find(name)) return *found;
  const auto meant = nearest_name(name, names());
  throw UsageError(meant ? fmt::format("there is no parameter {}; did you mean {}?", in_quotes(name), in_quotes(*meant))
                         : fmt::format("there is no parameter {}", in_quotes(name)));
}

NamedArray& ParameterSet::at(std::string_view name) { return const_cast<NamedArray&>(std::as_const(*this).at(name)); }

std::vector<std::string> ParameterSet::names() const {
  std::vector<std::string> result;
  for (const NamedArray& array : arrays_) result.push_back(array.name());
  return result;
}

bool ParameterSet::same_layout(const ParameterSet& other) const {
  return std::equal(begin(), end(), other.begin(), other.end(),
                    [](const NamedArray& a, const NamedArray& b) { return a.layout() == b.layout(); });
}

std::string ParameterSet::layout_difference(const ParameterSet& other) const {
  for (const NamedArray& expected : *this) {
    const NamedArray* its = other.find(expected.name());
    if (!its) return fmt::format("{} is missing", in_quotes(expected.name()));
    if (its->layout() != expected.layout()) {
      return fmt::format("{} is {}, expected {}", in_quotes(its->name()), to_string(its->layout()),
                         to_string(expected.layout()));
    }
  }
  for (const NamedArray& its : other) {
    if (!find(its.name())) return fmt::format("{} is not expected", in_quotes(its.name()));
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (other[i].name() != arrays_[i].name())
      return fmt::format("{} comes where {} is expected", in_quotes(other[i].name()), in_quotes(arrays_[i].name()));
  }
  return "";
}

bool operator==(const ParameterSet& a, const ParameterSet& b) {
  return a.same_layout(b) && std::equal(a.begin(), a.end(), b.begin(), same_bytes);
}

void copy_array(const NamedArray& from, NamedArray& to) {
  if (from.shape() != to.shape() || from.type() != to.type())
    throw UsageError(
        fmt::format("{} is {}, expected {}", in_quotes(from.name()), to_string(from.layout()), to_string(to.layout())));
  std::ranges::copy(from.bytes(), to.bytes().begin());
}

void copy_named(const ParameterSet& from, ParameterSet& to, std::string_view prefix) {
  for (NamedArray& array : to) copy_array(from.at(fmt::format("{}{}", prefix, array.name())), array);
}

}  // namespace tutti
