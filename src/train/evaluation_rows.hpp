// What evaluations are made of, whoever computes the network: batches of rows of a size that the run alone gives, and
// sums of each, which are added up in their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// Those of the run, or more where rows are small.
std::int64_t rows_at_once(const Run& run);
std::vector<std::int64_t> batch_numbers(std::int64_t batch, std::int64_t batch_rows, std::int64_t rows);

// Of a batch: the loss times its weight, the weight, of each metric sum and count.
std::size_t evaluation_width(const Run& run);
void measure(const Run& run, const torch::Tensor& output, const torch::Tensor& target, std::span<double> sums);

// From the sums of all batches.
Evaluation evaluation_of(const Run& run, std::int64_t rows, const std::vector<double>& sums);

}  // namespace tutti::detail
