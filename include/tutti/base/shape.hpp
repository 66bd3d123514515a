// What flows through a graph: arrays of some shape and type. Shapes are those of one row; the rows of a batch come
// before all dimensions, and no shape counts them.
//
//   ValueSpec image{.shape = {1, 28, 28}};
//   to_string(image);                        // "[1, 28, 28]"
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

using Shape = std::vector<std::int64_t>;

// Of what is computed with, and of numbers that stand for something: tokens, classes.
enum class ValueType : std::uint8_t { float32, int64 };
std::string_view to_string(ValueType type);

struct ValueSpec {
  Shape shape = {};
  ValueType type = ValueType::float32;

  friend bool operator==(const ValueSpec&, const ValueSpec&) = default;
};

std::string to_string(const Shape& shape);
// "[64] of int64"; of float32 the shape alone.
std::string to_string(const ValueSpec& spec);

// Of so many rows together.
Shape with_rows(std::int64_t rows, const Shape& shape);

// More elements than any machine holds in one array.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

// The product; nothing where it is beyond kMostElements.
std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape);

}  // namespace tutti
