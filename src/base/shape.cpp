#include <tutti/base/shape.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti {

std::string_view to_string(ValueType type) { return type == ValueType::float32 ? "float32" : "int64"; }

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string to_string(const ValueSpec& spec) {
  return spec.type == ValueType::float32 ? to_string(spec.shape)
                                         : fmt::format("{} of {}", to_string(spec.shape), to_string(spec.type));
}

Shape with_rows(std::int64_t rows, const Shape& shape) {
  Shape all{rows};
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count) || count > kMostElements) return std::nullopt;
  }
  return count;
}

}  // namespace tutti
