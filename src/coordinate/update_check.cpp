#include <tutti/coordinate/update_check.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>

#include <fmt/format.h>
#include <tutti/coordinate/aggregation.hpp>
#include <tutti/kernels/inspect.hpp>

#include "changes.hpp"

namespace tutti {
namespace {

template <Element T>
bool is_finite(T number) {
  if constexpr (requires { number.to_float(); })
    return std::isfinite(number.to_float());
  else
    return std::isfinite(static_cast<double>(number));
}

// What the client was given; nothing where it sent a change of that.
const ParameterSet* base_of(const ClientReply& reply) {
  return reply.is_change ? nullptr : reply.task.parameters.get();
}

}  // namespace

bool has_finite_numbers(const NamedArray& array) {
  if (!is_floating(array.type())) return true;
  if (size_of(array.type()) > 2) return all_finite(array.type(), array.bytes().data(), array.length());
  return dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
    return std::ranges::all_of(array.values<T>(), is_finite<T>);
  });
}

bool stays_finite(const NamedArray& array, const NamedArray* before) {
  if (has_finite_numbers(array)) return true;
  if (before == nullptr || before->shape() != array.shape() || before->type() != array.type()) return false;
  return dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
    const std::span<const T> numbers = array.values<T>();
    const std::span<const T> earlier = before->values<T>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (!is_finite(numbers[i]) && !detail::have_same_bits(numbers[i], earlier[i])) return false;
    }
    return true;
  });
}

bool stays_finite(const ParameterSet& set, const ParameterSet& before) {
  return std::ranges::all_of(set,
                             [&](const NamedArray& array) { return stays_finite(array, before.find(array.name())); });
}

bool has_gone_astray(const ClientReply& reply) {
  const ParameterSet* base = base_of(reply);
  return !std::isfinite(reply.loss) || !std::ranges::all_of(reply.values, [&](const NamedArray& array) {
    return stays_finite(array, base != nullptr ? base->find(array.name()) : nullptr);
  });
}

std::optional<std::string> why_refused_evaluation(const ClientReply& reply) {
  if (reply.rows < 1 || reply.rows > kMostClientRows) return fmt::format("it says that it has {} rows", reply.rows);
  if (!std::isfinite(reply.loss)) return fmt::format("its loss is {}", reply.loss);
  return std::nullopt;
}

std::optional<std::string> why_refused(const ClientReply& reply, const UpdateCheck& check) {
  if (const std::string difference = check.expected->layout_difference(reply.values); !difference.empty())
    return fmt::format("its update does not fit: {}", difference);
  const ParameterSet* base = base_of(reply);
  if (base != nullptr && !check.expected->same_layout(*base))
    return "its update is of a model of other names, shapes or types";
  for (std::size_t i = 0; i < reply.values.size(); ++i) {
    const NamedArray& array = reply.values[i];
    const NamedArray* before = base != nullptr ? &(*base)[i] : nullptr;
    if (!stays_finite(array, before))
      return fmt::format("\"{}\" has numbers that are infinite or not a number", array.name());
    if (before != nullptr && !stays_finite(*before, &array))
      return fmt::format("\"{}\" has other numbers where it was given some that are infinite or not a number",
                         array.name());
  }
  if (const auto why = why_refused_evaluation(reply)) return why;
  if (check.rows > 0 && reply.rows > check.rows)
    return fmt::format("it says that it has {} rows, and has {}", reply.rows, check.rows);
  if (reply.trained < 0 || reply.trained > kMostClientRows)
    return fmt::format("it says that it has computed with {} rows", reply.trained);
  if (check.max_norm > 0) {
    const double norm = norm_of({.values = &reply.values, .base = base}, check.is_trained);
    if (!(norm <= check.max_norm))
      return fmt::format("its change has a length of {:.4g}, above {:.4g}", norm, check.max_norm);
  }
  return std::nullopt;
}

}  // namespace tutti
