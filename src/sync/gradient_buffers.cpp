#include <tutti/sync/gradient_buffers.hpp>

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti {
namespace {

// The longest array of float64 that memory could hold.
constexpr std::size_t kMostElements = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(double);

std::size_t length_of(const NamedShape& piece) {
  std::size_t length = 1;
  for (const std::int64_t dimension : piece.shape) {
    if (dimension < 0) {
      throw UsageError(
          fmt::format("the gradient '{}' has a negative dimension: [{}]", piece.name, fmt::join(piece.shape, ", ")));
    }
    if (dimension != 0 && length > kMostElements / static_cast<std::size_t>(dimension)) {
      throw UsageError(
          fmt::format("the gradient '{}' is larger than any memory: [{}]", piece.name, fmt::join(piece.shape, ", ")));
    }
    length *= static_cast<std::size_t>(dimension);
  }
  return length;
}

void refuse_unless_possible(DataType type) {
  if (type != DataType::float32 && type != DataType::float64)
    throw UsageError(fmt::format("gradients are float32 or float64, not {}", to_string(type)));
}

}  // namespace

GradientBuffers::GradientBuffers(std::vector<NamedShape> shapes, DataType type) {
  refuse_unless_possible(type);
  const std::size_t length = lay_out(std::move(shapes));
  own_.resize(length * size_of(type));
  all_ = Array(own_.data(), length, type);
}

GradientBuffers::GradientBuffers(std::vector<NamedShape> shapes, Array memory) : all_(memory) {
  refuse_unless_possible(memory.type());
  const std::size_t length = lay_out(std::move(shapes));
  if (memory.length() != length) {
    throw UsageError(
        fmt::format("gradients of {} elements together do not lie in an array of {}", length, memory.length()));
  }
}

// Their length together.
std::size_t GradientBuffers::lay_out(std::vector<NamedShape> shapes) {
  std::size_t end = 0;
  for (NamedShape& shape : shapes) {
    const std::size_t length = length_of(shape);
    if (length > kMostElements - end) throw UsageError("gradients are together larger than any memory");
    if (!index_of_.emplace(shape.name, pieces_.size()).second)
      throw UsageError(fmt::format("two gradients have the name '{}'", shape.name));
    pieces_.push_back({std::move(shape.name), std::move(shape.shape), {end, length}});
    end += length;
  }
  return end;
}

Array GradientBuffers::operator[](std::string_view name) const {
  const auto found = index_of_.find(name);
  if (found != index_of_.end()) return (*this)[found->second];
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) names.push_back(piece.name);
  const auto meant = nearest_name(name, names);
  throw UsageError(
      fmt::format("there is no gradient '{}'{}", name, meant ? fmt::format("; did you mean '{}'?", *meant) : ""));
}

Array GradientBuffers::operator[](std::size_t index) const {
  if (index >= pieces_.size())
    throw UsageError(fmt::format("there are {} gradients, and none with the index {}", pieces_.size(), index));
  const Slice slice = pieces_[index].slice;
  return all_.slice(slice.first, slice.count);
}

}  // namespace tutti
