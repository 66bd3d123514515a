#include "labels.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/options.hpp>

namespace tutti::detail {
namespace {

std::span<const std::int64_t> numbers_in(const torch::Tensor& labels) {
  return {labels.data_ptr<std::int64_t>(), static_cast<std::size_t>(labels.numel())};
}

}  // namespace

std::int64_t count_classes(const std::filesystem::path& file, const torch::Tensor& labels) {
  refuse_unless_classes(file, labels, kMostSize);
  const std::span<const std::int64_t> numbers = numbers_in(labels);
  return numbers.empty() ? 0 : *std::ranges::max_element(numbers) + 1;
}

void refuse_unless_classes(const std::filesystem::path& file, const torch::Tensor& labels, std::int64_t classes) {
  const std::span<const std::int64_t> numbers = numbers_in(labels);
  const auto wrong = std::ranges::find_if(numbers, [&](std::int64_t label) { return label < 0 || label >= classes; });
  if (wrong == numbers.end()) return;
  const std::int64_t row = (wrong - numbers.begin()) / std::max<std::int64_t>(labels.numel() / labels.size(0), 1);
  throw UsageError(
      fmt::format("{}: row {}: expected a class from 0 to {}, found {}", file.string(), row, classes - 1, *wrong));
}

}  // namespace tutti::detail
