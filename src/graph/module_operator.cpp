#include <tutti/graph/module_operator.hpp>

#include <algorithm>
#include <exception>
#include <new>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/types.h>

#include "cause.hpp"
#include "sizes.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kRows = 2;

torch::Tensor zeros_for(const ValueSpec& spec) {
  return torch::zeros(with_rows(kRows, spec.shape), spec.type == ValueType::int64 ? torch::kInt64 : torch::kFloat32);
}

Shape shape_of(const torch::Tensor& tensor) { return tensor.sizes().vec(); }

}  // namespace

namespace detail {

Operator operator_of_module(
    const Options& options, std::span<const ValueSpec> inputs,
    const std::function<std::shared_ptr<torch::nn::Module>()>& make,
    const std::function<torch::Tensor(torch::nn::Module&, std::span<const torch::Tensor>)>& forward) {
  Operator result{.make_module = make};
  torch::Tensor output;
  bool writes_to_inputs = false;
  try {
    const std::shared_ptr<torch::nn::Module> module = make();
    if (!module) throw options.error("its function made no module");
    std::vector<const void*> known;  // a module that is there under two names has its parameters once
    for (const auto& item : module->named_parameters()) {
      const void* tensor = item.value().unsafeGetTensorImpl();
      if (std::ranges::find(known, tensor) != known.end()) continue;
      known.push_back(tensor);
      result.parameters.push_back(
          {.name = item.key(), .shape = shape_of(item.value()), .is_frozen = !item.value().requires_grad()});
    }
    for (const auto& item : module->named_buffers()) {
      result.buffers.push_back({.name = item.key(),
                                .shape = shape_of(item.value()),
                                .type = item.value().is_floating_point() ? ValueType::float32 : ValueType::int64});
    }
    const torch::NoGradGuard no_gradients;
    for (const bool is_training : {false, true}) {
      module->train(is_training);
      std::vector<torch::Tensor> zeros;
      for (const ValueSpec& input : inputs) zeros.push_back(zeros_for(input));
      const torch::Tensor before = output;
      output = forward(*module, zeros);
      for (const torch::Tensor& input : zeros)
        writes_to_inputs = writes_to_inputs || (!input.is_inference() && input._version() > 0);
      if (before.defined() && output.defined() && output.sizes() != before.sizes()) {
        throw options.error(fmt::format("expected one shape to come out, found {} in evaluation and {} in training",
                                        text_of(before.sizes()), text_of(output.sizes())));
      }
    }
  } catch (const UsageError& error) {
    throw options.object().placed(error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw options.error(fmt::format("it failed on rows of zeros: {}", cause_of(error)));
  }
  if (!output.defined() || output.dim() < 1 || output.size(0) != kRows) {
    throw options.error(fmt::format("expected {} rows to come out where {} go in, found {}", kRows, kRows,
                                    output.defined() ? "the shape " + text_of(output.sizes()) : "nothing"));
  }
  if (output.scalar_type() != torch::kFloat32 && output.scalar_type() != torch::kInt64)
    throw options.error(
        fmt::format("expected numbers of float32 or int64 to come out, found {}", c10::toString(output.scalar_type())));
  result.output = {.shape = output.sizes().slice(1).vec(),
                   .type = output.is_floating_point() ? ValueType::float32 : ValueType::int64};
  result.draws = true;  // for all that is known
  result.compute = [forward, writes_to_inputs](const OperatorCall& call) {
    if (!writes_to_inputs) return forward(*call.module, call.inputs);
    std::vector<torch::Tensor> own;  // others use them, too
    for (const torch::Tensor& input : call.inputs) own.push_back(input.clone());
    return forward(*call.module, own);
  };
  return result;
}

}  // namespace detail

OperatorType module_operator(const ModuleOperator& its) {
  if (!its.make || !its.forward) throw UsageError(fmt::format("the operator '{}' has no function", its.name));
  return {.name = its.name,
          .least_inputs = its.least_inputs,
          .most_inputs = its.most_inputs,
          .resolve = [its](const Options& options, std::span<const ValueSpec> inputs) {
            const std::vector<ValueSpec> specs(inputs.begin(), inputs.end());
            (void)its.make(options, specs);  // so that the keys that it reads are known
            return detail::operator_of_module(
                options, inputs, [its, options, specs] { return its.make(Options(options.object()), specs); },
                its.forward);
          }};
}

}  // namespace tutti
