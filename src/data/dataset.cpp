#include <tutti/data/dataset.hpp>

#include <fmt/format.h>

#include "sources.hpp"

namespace tutti {

DataSourceRegistry::DataSourceRegistry() : NamedTypes("data source") { detail::add_fashion_mnist(*this); }

TensorDataset::TensorDataset(std::vector<torch::Tensor> inputs, torch::Tensor target)
    : inputs_(std::move(inputs)), target_(std::move(target)) {
  for (const torch::Tensor& input : inputs_) {
    if (input.dim() < 1 || target_.dim() < 1 || input.size(0) != target_.size(0))
      throw UsageError("inputs and targets do not have as many rows");
  }
}

DataRows TensorDataset::rows(std::span<const std::int64_t> numbers) const {
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= size())
      throw UsageError(fmt::format("there is no row {}: there are {}", number, size()));
  }
  const torch::Tensor index = torch::tensor(c10::ArrayRef<std::int64_t>(numbers.data(), numbers.size()), torch::kInt64);
  DataRows rows;
  for (const torch::Tensor& input : inputs_) rows.inputs.push_back(input.index_select(0, index));
  rows.target = target_.index_select(0, index);
  return rows;
}

}  // namespace tutti
