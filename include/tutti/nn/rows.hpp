// Which rows of a batch a shard gets: every stride-th, from its own number on, as DataParallelTrainer::split_batch
// deals them out. A batch is a tensor, or a tuple, pair or torch::data::Example of batches, or a vector of tensors; for
// a type of one's own two functions beside it do:
//
//   struct Pairs { torch::Tensor left, right; };
//   std::int64_t row_count(const Pairs& batch) {
//     return tutti::same_row_count(batch.left.size(0), batch.right.size(0));
//   }
//   Pairs slice_rows(const Pairs& batch, const tutti::Rows& rows) {
//     return {rows.of(batch.left), rows.of(batch.right)};
//   }
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>
#include <tutti/base/error.hpp>

namespace tutti {

struct Rows {
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::int64_t count = 0;

  // What one of so many shards gets of so many rows.
  static Rows of_shard(std::int64_t rows, int shards, int shard);

  // Those rows of a tensor: a view.
  at::Tensor of(const at::Tensor& tensor) const;
};

inline std::int64_t row_count(const at::Tensor& batch) {
  if (!batch.defined() || batch.dim() == 0)
    throw UsageError("a batch is a tensor of rows; found one without dimensions");
  return batch.size(0);
}
inline at::Tensor slice_rows(const at::Tensor& batch, const Rows& rows) { return rows.of(batch); }

// Of the parts of a batch: how many rows they have; a UsageError where they have different numbers of them.
std::int64_t same_row_count(std::int64_t count, std::int64_t other);

// Batches are made of batches, so each kind must know all others.
template <typename A, typename B>
std::int64_t row_count(const std::pair<A, B>& batch);
template <typename A, typename B>
std::pair<A, B> slice_rows(const std::pair<A, B>& batch, const Rows& rows);
template <typename A, typename B>
std::int64_t row_count(const torch::data::Example<A, B>& batch);
template <typename A, typename B>
torch::data::Example<A, B> slice_rows(const torch::data::Example<A, B>& batch, const Rows& rows);
template <typename First, typename... Others>
std::int64_t row_count(const std::tuple<First, Others...>& batch);
template <typename... Parts>
std::tuple<Parts...> slice_rows(const std::tuple<Parts...>& batch, const Rows& rows);
std::int64_t row_count(const std::vector<at::Tensor>& batch);
std::vector<at::Tensor> slice_rows(const std::vector<at::Tensor>& batch, const Rows& rows);

template <typename A, typename B>
std::int64_t row_count(const std::pair<A, B>& batch) {
  return same_row_count(row_count(batch.first), row_count(batch.second));
}
template <typename A, typename B>
std::pair<A, B> slice_rows(const std::pair<A, B>& batch, const Rows& rows) {
  return {slice_rows(batch.first, rows), slice_rows(batch.second, rows)};
}

template <typename A, typename B>
std::int64_t row_count(const torch::data::Example<A, B>& batch) {
  return same_row_count(row_count(batch.data), row_count(batch.target));
}
template <typename A, typename B>
torch::data::Example<A, B> slice_rows(const torch::data::Example<A, B>& batch, const Rows& rows) {
  return {slice_rows(batch.data, rows), slice_rows(batch.target, rows)};
}

template <typename First, typename... Others>
std::int64_t row_count(const std::tuple<First, Others...>& batch) {
  return std::apply(
      [](const auto& first, const auto&... others) {
        std::int64_t count = row_count(first);
        ((count = same_row_count(count, row_count(others))), ...);
        return count;
      },
      batch);
}
template <typename... Parts>
std::tuple<Parts...> slice_rows(const std::tuple<Parts...>& batch, const Rows& rows) {
  return std::apply([&](const auto&... parts) { return std::tuple<Parts...>(slice_rows(parts, rows)...); }, batch);
}

inline std::int64_t row_count(const std::vector<at::Tensor>& batch) {
  if (batch.empty()) throw UsageError("a batch of no tensors has no rows");
  std::int64_t count = row_count(batch.front());
  for (const at::Tensor& part : batch) count = same_row_count(count, row_count(part));
  return count;
}
inline std::vector<at::Tensor> slice_rows(const std::vector<at::Tensor>& batch, const Rows& rows) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : batch) parts.push_back(rows.of(part));
  return parts;
}

}  // namespace tutti
