// Tensors as arrays of a ParameterSet, and back: how what libtorch computes with gets into files and messages.
//
//   ParameterSet set;
//   add_tensor(set, "hidden.weight", tensor);
//   copy_to_tensor(set.at("hidden.weight"), tensor);          // a UsageError where their shapes differ
//
// An array is laid out row by row, however the tensor lies in memory. Types that a ParameterSet does not have, such as
// bool and bytes, become int64 there, and again what the tensor is.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <tutti/base/parameter_set.hpp>

namespace tutti {

void add_tensor(ParameterSet& set, const std::string& name, const at::Tensor& tensor);

// A copy.
at::Tensor tensor_of(const NamedArray& array);

// A UsageError that names both shapes; and where numbers with a point are to become whole ones, or the other way round.
void refuse_unless_fits(const NamedArray& array, const at::Tensor& tensor);
void copy_to_tensor(const NamedArray& array, at::Tensor tensor);

// The module's parameters and buffers, by name. A parameter that has several is there under its first.
void add_module(ParameterSet& set, const torch::nn::Module& module);
// Fills them from a set that has all of them; arrays of other names are no concern of this. A UsageError names what is
// missing or does not fit; nothing was changed then.
void fill_module(const ParameterSet& set, const torch::nn::Module& module);

}  // namespace tutti
