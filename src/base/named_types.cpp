#include <tutti/base/named_types.hpp>

#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <tutti/base/nearest_name.hpp>

namespace tutti::detail {

void refuse_unless_name(const std::string& kind, const std::string& name) {
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_';
  });
  if (!is_name) throw UsageError(fmt::format("{}: a name is made of letters, digits and _, found '{}'", kind, name));
}

UsageError name_is_taken(const std::string& kind, const std::string& name) {
  return UsageError(fmt::format("the {} '{}' is there already", kind, name));
}

UsageError has_no_function(const std::string& kind, const std::string& name) {
  return UsageError(fmt::format("the {} '{}' has no function", kind, name));
}

UsageError unknown_name(const std::string& kind, const JsonValue& value, const std::vector<std::string>& known) {
  const std::optional<std::string> nearest = nearest_name(value.string(), known);
  return value.error(fmt::format("there is no {} '{}'; {}", kind, value.string(),
                                 nearest ? fmt::format("did you mean '{}'?", *nearest)
                                         : fmt::format("expected one of {}", fmt::join(known, ", "))));
}

}  // namespace tutti::detail
