#include <tutti/coordinate/shared_parameters.hpp>

#include <cmath>
#include <concepts>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/update_check.hpp>

#include "multiples.hpp"

namespace tutti {
namespace {

void refuse_bad_numbers(const ParameterSet& set) {
  for (const NamedArray& array : set) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", array.name()));
  }
}

void refuse_other_layout(const ParameterSet& expected, const ParameterSet& found) {
  if (const std::string difference = expected.layout_difference(found); !difference.empty())
    throw UsageError(fmt::format("these are of another model: {}", difference));
}

}  // namespace

SharedParameters::SharedParameters(ParameterSet parameters) : parameters_(std::move(parameters)) {
  refuse_bad_numbers(parameters_);
}

ParameterSet SharedParameters::read() const {
  ParameterSet copy = set_with_layouts(layout_words(parameters_));
  read(copy);
  return copy;
}

void SharedParameters::read(ParameterSet& into) const {
  refuse_other_layout(parameters_, into);
  for (std::size_t i = 0; i < into.size(); ++i) {
    dispatch(into[i].type(), [&]<typename T>(std::type_identity<T>) {
      const SharedArray<T> from = array<T>(i);
      const std::span<T> to = into[i].values<T>();
      for (std::size_t j = 0; j < to.size(); ++j) to[j] = from.load(j);
    });
  }
}

void SharedParameters::add(const ParameterSet& deltas, double factor) const {
  refuse_other_layout(parameters_, deltas);
  refuse_bad_numbers(deltas);
  if (!std::isfinite(factor)) throw UsageError(fmt::format("expected a factor that is finite, found {}", factor));
  if (const double most = detail::largest_factor(parameters_); std::abs(factor) > most)
    throw UsageError(
        fmt::format("expected a factor up to {:.3g}, as numbers of these types go, found {}", most, factor));
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    dispatch(deltas[i].type(), [&]<typename T>(std::type_identity<T>) {
      const SharedArray<T> to = array<T>(i);
      const std::span<const T> from = deltas[i].values<T>();
      for (std::size_t j = 0; j < from.size(); ++j) to.add(j, detail::multiple(from[j], factor));
    });
  }
}

NamedArray& SharedParameters::at(std::size_t index) const {
  if (parameters_.size() == 0) throw UsageError(fmt::format("there is no array {}: the set is empty", index));
  if (index >= parameters_.size())
    throw UsageError(fmt::format("there is no array {}: expected 0 to {}", index, parameters_.size() - 1));
  return parameters_[index];
}

}  // namespace tutti
