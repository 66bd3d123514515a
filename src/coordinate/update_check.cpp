#include <tutti/coordinate/update_check.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <tutti/coordinate/aggregation.hpp>
#include <tutti/kernels/inspect.hpp>

namespace tutti {

bool has_finite_numbers(const NamedArray& array) {
  if (!is_floating(array.type())) return true;
  if (size_of(array.type()) > 2) return all_finite(array.type(), array.bytes().data(), array.length());
  return dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
    if constexpr (sizeof(T) == 2)
      return std::ranges::all_of(array.values<T>(), [](T number) { return std::isfinite(number.to_float()); });
    else
      return true;
  });
}

bool has_gone_astray(const ClientReply& reply) {
  return !std::isfinite(reply.loss) || !std::ranges::all_of(reply.values, has_finite_numbers);
}

std::optional<std::string> why_refused_evaluation(const ClientReply& reply) {
  if (reply.rows < 1 || reply.rows > kMostClientRows) return fmt::format("it says that it has {} rows", reply.rows);
  if (!std::isfinite(reply.loss)) return fmt::format("its loss is {}", reply.loss);
  return std::nullopt;
}

std::optional<std::string> why_refused(const ClientReply& reply, const UpdateCheck& check) {
  if (const std::string difference = check.expected->layout_difference(reply.values); !difference.empty())
    return fmt::format("its update does not fit: {}", difference);
  for (const NamedArray& array : reply.values) {
    if (!has_finite_numbers(array))
      return fmt::format("\"{}\" has numbers that are infinite or not a number", array.name());
  }
  if (const auto why = why_refused_evaluation(reply)) return why;
  if (reply.trained < 0 || reply.trained > kMostClientRows)
    return fmt::format("it says that it has computed with {} rows", reply.trained);
  if (check.max_norm > 0) {
    const ParameterSet* base = reply.is_change ? nullptr : reply.task.parameters.get();
    const double norm = norm_of({.values = &reply.values, .base = base}, check.is_trained);
    if (!(norm <= check.max_norm))
      return fmt::format("its change has a length of {:.4g}, above {:.4g}", norm, check.max_norm);
  }
  return std::nullopt;
}

}  // namespace tutti
