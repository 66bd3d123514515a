#include "cli/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti::cli {
namespace {

// More threads than any one machine has cores for; beyond, a typing error is likelier than a wish.
constexpr int kMostRanks = 1024;

}  // namespace

std::vector<std::string> parse_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    if (parts.back().empty())
      throw UsageError(fmt::format("{}: '{}' has an empty entry; write values with commas between", option, text));
    begin = end + 1;
  }
  return parts;
}

std::vector<int> parse_counts(std::string_view option, std::string_view text, int most) {
  std::vector<int> counts;
  for (const std::string& part : parse_list(option, text)) {
    int count = 0;
    const char* end = part.data() + part.size();
    const auto [rest, problem] = std::from_chars(part.data(), end, count);
    if (problem != std::errc{} || rest != end || count < 1 || count > most)
      throw UsageError(fmt::format("{}: expected whole numbers from 1 to {}, found '{}'", option, most, part));
    counts.push_back(count);
  }
  return counts;
}

std::vector<int> parse_ranks(std::string_view option, std::string_view text) {
  return parse_counts(option, text, kMostRanks);
}

std::vector<Bytes> parse_sizes(std::string_view option, std::string_view text) {
  std::vector<Bytes> sizes;
  for (const std::string& part : parse_list(option, text)) {
    try {
      sizes.push_back(parse_bytes(part));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", option, error.what()));
    }
  }
  return sizes;
}

std::string join_sizes(std::span<const Bytes> sizes) {
  std::string text;
  for (const Bytes& size : sizes) text += fmt::format("{}{}", text.empty() ? "" : ",", size.value);
  return text;
}

std::size_t parse_choice(std::string_view option, std::string_view text, std::span<const std::string_view> names) {
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const std::optional<std::string> nearest = nearest_name(text, {names.begin(), names.end()});
  throw UsageError(fmt::format("{}: expected {}, found '{}'{}", option, fmt::join(names, ", "), text,
                               nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

}  // namespace tutti::cli
