#include <tutti/sync/compression_plan.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <variant>

namespace tutti {
namespace {

// Indices, and words of values.
constexpr std::size_t kWord = 4;

std::size_t length_of(const GradientShape& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<std::int64_t>()));
}

CompressedMessage all_reduced(std::size_t length, std::size_t size) {
  return {.length = length, .bytes = length * size};
}

struct MessagesOf {
  std::span<const GradientShape> shapes;
  std::size_t size;  // of a value

  std::size_t length() const {
    return std::transform_reduce(shapes.begin(), shapes.end(), std::size_t{0}, std::plus<>(), length_of);
  }
  std::vector<CompressedMessage> operator()(const NoCompression&) const { return {all_reduced(length(), size)}; }
  std::vector<CompressedMessage> operator()(const Float16&) const { return {all_reduced(length(), 2)}; }
  std::vector<CompressedMessage> operator()(const BFloat16&) const { return {all_reduced(length(), 2)}; }
  std::vector<CompressedMessage> operator()(const TopK& top_k) const {
    std::size_t count = 0;
    for (const GradientShape& shape : shapes) count += top_k_count(top_k, length_of(shape));
    const std::size_t words = count * (1 + size / kWord);
    return {{.length = words, .bytes = words * kWord, .is_gathered = true}};
  }
  std::vector<CompressedMessage> operator()(const PowerSgd& power_sgd) const {
    const LowRankPlan plan = low_rank_plan(power_sgd, shapes);
    return {all_reduced(plan.first_length, size), all_reduced(plan.second_length, size)};
  }
};

}  // namespace

std::size_t top_k_count(const TopK& top_k, std::size_t length) {
  const double share = std::round(top_k.fraction * static_cast<double>(length));
  return std::min(length, std::max(std::size_t{1}, static_cast<std::size_t>(share)));
}

LowRankPlan low_rank_plan(const PowerSgd& power_sgd, std::span<const GradientShape> shapes) {
  LowRankPlan plan;
  for (const GradientShape& shape : shapes) {
    LowRankPiece& planned = plan.pieces.emplace_back();
    const std::size_t length = length_of(shape);
    if (shape.size() >= 2 && length > 0) {
      const auto rows = static_cast<std::size_t>(shape[0]);
      planned.shape = {rows, length / rows, static_cast<std::size_t>(power_sgd.rank)};
      const auto& [_, columns, rank] = planned.shape;
      planned.is_matrix = rank < std::min(rows, columns) && rank * (rows + columns) < length;
    }
    planned.first = {plan.first_length, planned.is_matrix ? planned.shape.rows * planned.shape.rank : length};
    planned.second = {plan.second_length, planned.is_matrix ? planned.shape.columns * planned.shape.rank : 0};
    plan.first_length = planned.first.end();
    plan.second_length = planned.second.end();
  }
  return plan;
}

std::vector<CompressedMessage> compressed_messages(const Compression& compression,
                                                   std::span<const GradientShape> shapes, DataType type) {
  return std::visit(MessagesOf{shapes, size_of(type)}, compression);
}

}  // namespace tutti
