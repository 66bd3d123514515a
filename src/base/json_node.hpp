// What a JSON text is parsed into, and how messages show pieces of it: shared by the parser and the values.
//
// A tree of nlohmann-json would not tell where a value stood: here each node keeps its offsets in the text, and a line
// and column are counted once an error needs them.
#pragma once

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/base/json.hpp>

namespace tutti {
namespace detail {

struct JsonNode {
  enum class Kind { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  std::size_t offset = 0;          // of its first byte
  std::size_t end = 0;             // of the byte after its last
  std::string text;                // of a string its characters; of a number, boolean or null as it was written
  std::vector<JsonNode> children;  // elements of an array, members of an object

  // Of a member of an object.
  std::string key;
  std::size_t key_offset = 0;
};

}  // namespace detail

struct JsonDocument::Content {
  std::string name;
  std::filesystem::path folder;  // of the file that it was read from
  std::string text;
  detail::JsonNode root;
};

namespace detail {

// Parses the text of `content`, or throws a UsageError.
JsonNode parse_json(const JsonDocument::Content& content);

// "run.json:3:51"
std::string json_place(const JsonDocument::Content& content, std::size_t offset);

// On one line whatever it holds: quotes, backslashes and control characters escaped.
std::string printable(std::string_view text);
// The same, cut off where it is long.
std::string shown(std::string_view text);
std::string in_quotes(std::string_view text);

// The number that all of `text` is, if the type can hold it.
template <typename Number>
std::optional<Number> read_number(std::string_view text) {
  Number value{};
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace detail
}  // namespace tutti
