// Single numbers in what is saved for a checkpoint.
//
//   saved_number(state, "train/steps", std::int64_t{0});        // 0 where there is none
#pragma once

#include <string>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_set.hpp>

namespace tutti::detail {

template <typename T>
T saved_number(const ParameterSet& state, const std::string& name, T otherwise) {
  const NamedArray* array = state.find(name);
  if (array == nullptr) return otherwise;
  if (array->length() != 1) throw UsageError(fmt::format("'{}' is no single number", name));
  return array->values<T>().front();
}

}  // namespace tutti::detail
