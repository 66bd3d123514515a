#include <tutti/nn/tensor_set.hpp>

#include <cstring>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <tutti/base/error.hpp>

#include "module_parameters.hpp"

namespace tutti {
namespace {

std::optional<DataType> same_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DataType::float32;
    case at::kDouble: return DataType::float64;
    case at::kHalf: return DataType::float16;
    case at::kBFloat16: return DataType::bfloat16;
    case at::kInt: return DataType::int32;
    case at::kLong: return DataType::int64;
    default: return std::nullopt;
  }
}

at::ScalarType scalar_type(DataType type) {
  switch (type) {
    case DataType::float32: return at::kFloat;
    case DataType::float64: return at::kDouble;
    case DataType::float16: return at::kHalf;
    case DataType::bfloat16: return at::kBFloat16;
    case DataType::int32: return at::kInt;
    case DataType::int64: break;
  }
  return at::kLong;
}

// Its elements where the set has them. The set outlives it.
at::Tensor view_of(const NamedArray& array) {
  return torch::from_blob(const_cast<std::byte*>(array.bytes().data()), array.shape(), scalar_type(array.type()));
}

// What a module keeps: its parameters, each once, and its buffers.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const detail::ModuleParameter& parameter : detail::parameters_of(module))
    tensors.push_back({parameter.name(), parameter.tensor()});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

}  // namespace

void add_tensor(ParameterSet& set, const std::string& name, const at::Tensor& tensor) {
  at::Tensor dense = tensor.detach();
  std::optional<DataType> type = same_type(dense.scalar_type());
  if (!type) {
    if (!at::isIntegralType(dense.scalar_type(), /*includeBool=*/true)) {
      throw UsageError(
          fmt::format("'{}' is {}, which cannot be kept in a file", name, c10::toString(dense.scalar_type())));
    }
    type = DataType::int64;
    dense = dense.to(at::kLong);
  }
  dense = dense.contiguous();
  set.add({.name = name, .shape = dense.sizes().vec(), .type = *type},
          {static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
}

at::Tensor tensor_of(const NamedArray& array) { return view_of(array).clone(); }

void refuse_unless_fits(const NamedArray& array, const at::Tensor& tensor) {
  const Shape shape = tensor.sizes().vec();
  if (array.shape() != shape) {
    throw UsageError(
        fmt::format("'{}' is {} there, expected {}", array.name(), to_string(array.shape()), to_string(shape)));
  }
  if (is_floating(array.type()) != tensor.is_floating_point()) {
    throw UsageError(fmt::format("'{}' is {} there, expected {}", array.name(), to_string(array.type()),
                                 c10::toString(tensor.scalar_type())));
  }
}

void copy_to_tensor(const NamedArray& array, at::Tensor tensor) {
  refuse_unless_fits(array, tensor);
  const torch::NoGradGuard no_grad;
  tensor.copy_(view_of(array));
}

void add_module(ParameterSet& set, const torch::nn::Module& module) {
  for (const NamedTensor& its : tensors_of(module)) add_tensor(set, its.name, its.tensor);
}

void fill_module(const ParameterSet& set, const torch::nn::Module& module) {
  const std::vector<NamedTensor> tensors = tensors_of(module);
  for (const NamedTensor& its : tensors) refuse_unless_fits(set.at(its.name), its.tensor);
  for (const NamedTensor& its : tensors) copy_to_tensor(set.at(its.name), its.tensor);
}

}  // namespace tutti
