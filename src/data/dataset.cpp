#include <tutti/data/dataset.hpp>

#include <cstring>

#include <fmt/format.h>
#include <tutti/data/joined.hpp>

#include "sources.hpp"

namespace tutti {

std::shared_ptr<const Dataset> detail::rows_of_files(std::vector<std::shared_ptr<const Dataset>> files) {
  if (files.size() == 1) return files.front();
  return std::make_shared<JoinedDataset>(std::move(files));
}

std::shared_ptr<const Dataset> detail::rows_without_target(torch::Tensor inputs) {
  const std::int64_t rows = inputs.size(0);
  return std::make_shared<TensorDataset>(std::vector{std::move(inputs)}, torch::empty({rows, 0}));
}
namespace {

// Rows of a contiguous tensor. torch's index_select sets a copy up for each row, which takes longer than the copy.
torch::Tensor select_rows(const torch::Tensor& from, std::span<const std::int64_t> numbers) {
  std::vector<std::int64_t> sizes = from.sizes().vec();
  sizes.front() = static_cast<std::int64_t>(numbers.size());
  std::size_t row = 1;
  for (const std::int64_t size : from.sizes().slice(1)) row *= static_cast<std::size_t>(size);
  torch::Tensor to = torch::empty(sizes, from.options());
  const std::size_t row_bytes = row * from.element_size();
  const auto* source = static_cast<const std::byte*>(from.data_ptr());
  auto* place = static_cast<std::byte*>(to.data_ptr());
  for (const std::int64_t number : numbers) {
    std::memcpy(place, source + static_cast<std::size_t>(number) * row_bytes, row_bytes);
    place += row_bytes;
  }
  return to;
}

torch::Tensor unpacked(const torch::Tensor& bytes) {
  torch::Tensor numbers = torch::empty(bytes.sizes(), torch::kFloat32);
  const torch::Tensor from = bytes.contiguous();
  const auto* source = from.data_ptr<std::uint8_t>();
  auto* place = numbers.data_ptr<float>();
  for (std::int64_t i = 0; i < from.numel(); ++i) place[i] = static_cast<float>(source[i]) / 255.0f;
  return numbers;
}

}  // namespace

DataRows unpack_rows(DataRows packed) {
  for (torch::Tensor& input : packed.inputs) {
    if (input.scalar_type() == torch::kUInt8) input = unpacked(input);
  }
  return packed;
}

DataSourceRegistry::DataSourceRegistry() : NamedTypes("data source") {
  detail::add_csv(*this);
  detail::add_fashion_mnist(*this);
  detail::add_idx(*this);
  detail::add_mnist(*this);
  detail::add_npy(*this);
  detail::add_text(*this);
}

TensorDataset::TensorDataset(std::vector<torch::Tensor> inputs, torch::Tensor target)
    : inputs_(std::move(inputs)), target_(std::move(target)) {
  for (const torch::Tensor& input : inputs_) {
    if (input.dim() < 1 || target_.dim() < 1 || input.size(0) != target_.size(0))
      throw UsageError("inputs and targets do not have as many rows");
  }
  for (torch::Tensor& input : inputs_) input = input.contiguous();
  target_ = target_.contiguous();
}

DataRows TensorDataset::rows(std::span<const std::int64_t> numbers) const { return unpack_rows(packed_rows(numbers)); }

DataRows TensorDataset::packed_rows(std::span<const std::int64_t> numbers) const {
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= size())
      throw UsageError(fmt::format("there is no row {}: there are {}", number, size()));
  }
  DataRows rows;
  for (const torch::Tensor& input : inputs_) rows.inputs.push_back(select_rows(input, numbers));
  rows.target = select_rows(target_, numbers);
  return rows;
}

}  // namespace tutti
