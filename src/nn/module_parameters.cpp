#include "module_parameters.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {
namespace {

std::string shape_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  return text.str();
}

void refuse_unless_plain(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError(fmt::format("the parameter '{}' is not defined", name));
  if (!tensor.device().is_cpu()) {
    throw UsageError(
        fmt::format("the parameter '{}' is on the device {}; tutti trains on the CPU", name, tensor.device().str()));
  }
  if (tensor.is_sparse() || !tensor.has_storage() || !tensor.is_non_overlapping_and_dense())
    throw UsageError(fmt::format("the parameter '{}' does not lie in one piece of memory", name));
}

// Where a parameter lies: from its first byte to behind its last.
std::pair<const std::byte*, const std::byte*> place_of(const torch::Tensor& tensor) {
  const auto* first = static_cast<const std::byte*>(tensor.data_ptr());
  return {first, first + tensor.nbytes()};
}

bool is_same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

void refuse_overlaps(const std::vector<ModuleParameter>& parameters) {
  std::vector<const ModuleParameter*> by_place;
  for (const ModuleParameter& parameter : parameters) {
    if (parameter.tensor().numel() > 0) by_place.push_back(&parameter);
  }
  std::ranges::sort(by_place, {}, [](const ModuleParameter* parameter) { return place_of(parameter->tensor()).first; });
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    if (place_of(by_place[i]->tensor()).first >= place_of(by_place[i - 1]->tensor()).second) continue;
    throw UsageError(
        fmt::format("the parameters '{}' and '{}' share a part of their memory; they may be the same as a whole, "
                    "or apart",
                    by_place[i - 1]->name(), by_place[i]->name()));
  }
}

}  // namespace

std::vector<ModuleParameter> parameters_of(const torch::nn::Module& module) {
  std::vector<ModuleParameter> parameters;
  for (const auto& item : module.named_parameters()) {
    refuse_unless_plain(item.key(), item.value());
    const auto known = std::ranges::find_if(parameters, [&](const ModuleParameter& parameter) {
      return item.value().is_same(parameter.tensor()) ||
             (item.value().numel() > 0 && is_same(parameter.tensor(), item.value()));
    });
    if (known == parameters.end()) {
      parameters.push_back({{item.key()}, {item.value()}});
      continue;
    }
    known->names.push_back(item.key());
    const bool is_new = std::ranges::none_of(
        known->variables, [&](const torch::Tensor& variable) { return variable.is_same(item.value()); });
    if (is_new) known->variables.push_back(item.value());
  }
  refuse_overlaps(parameters);
  return parameters;
}

void refuse_aliases(const ModuleParameter& parameter) {
  if (parameter.variables.size() == 1) return;
  throw UsageError(
      fmt::format("the parameters '{}' share memory, and not a tensor; tie them by assigning one to the other",
                  fmt::join(parameter.names, "' and '")));
}

std::vector<ModuleParameter> share_parameters(const std::vector<ModuleParameter>& of, const torch::nn::Module& replica,
                                              const std::vector<bool>& is_own) {
  const auto own = replica.named_parameters();
  std::size_t names = 0;
  std::vector<ModuleParameter> shared;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const ModuleParameter& parameter = of[i];
    ModuleParameter& mine = shared.emplace_back();
    mine.names = parameter.names;
    for (const std::string& name : parameter.names) {
      ++names;
      const torch::Tensor* variable = own.find(name);
      if (variable == nullptr) throw UsageError(fmt::format("a replica has no parameter '{}'", name));
      if (variable->sizes() != parameter.tensor().sizes() ||
          variable->scalar_type() != parameter.tensor().scalar_type()) {
        throw UsageError(fmt::format("the parameter '{}' is {} in the first replica and {} in another", name,
                                     shape_of(parameter.tensor()), shape_of(*variable)));
      }
      const bool is_new =
          std::ranges::none_of(mine.variables, [&](const torch::Tensor& known) { return known.is_same(*variable); });
      if (!is_new) continue;
      torch::Tensor its = *variable;
      if (!is_own[i]) its.set_data(parameter.tensor().detach());
      its.set_requires_grad(parameter.tensor().requires_grad());
      mine.variables.push_back(its);
    }
  }
  if (own.size() != names) {
    for (const auto& item : own) {
      const bool known = std::ranges::any_of(of, [&](const ModuleParameter& parameter) {
        return std::ranges::find(parameter.names, item.key()) != parameter.names.end();
      });
      if (!known)
        throw UsageError(fmt::format("a replica has a parameter '{}', which the first one lacks", item.key()));
    }
  }
  return shared;
}

}  // namespace tutti::detail
