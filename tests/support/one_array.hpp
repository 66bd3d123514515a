// Models and gradients of one array, for tests of coordinators.
//
//   coordinator.set_model_parameters(doubles({1, 2}));
//   coordinator.add_gradients(doubles({0.5, 0.5}));
//   EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(0.5, 1.5));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>

namespace tutti::testing {

template <Element T>
ParameterSet one_array(const std::vector<T>& values, const std::string& name = "weight") {
  ParameterSet set;
  set.add(name, {static_cast<std::int64_t>(values.size())}, values);
  return set;
}

inline ParameterSet doubles(const std::vector<double>& values, const std::string& name = "weight") {
  return one_array<double>(values, name);
}

// Of the first array, which is of float64.
inline std::vector<double> numbers_of(const ParameterSet& set) {
  const auto values = set[0].values<double>();
  return {values.begin(), values.end()};
}

}  // namespace tutti::testing
