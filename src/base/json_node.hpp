// What a JSON text is parsed into, and how messages show pieces of it: shared by the parser and the values.
//
// A tree of nlohmann-json would not tell where a value stood: here each node keeps its text and the offset in it, and a
// line and column are counted once an error needs them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include <tutti/base/json.hpp>

namespace tutti {
namespace detail {

// A text that values come from: that of a document, or of one value that was set in it.
struct JsonSource {
  std::string name;  // "run.json", "--set train.epochs=5"
  std::string text;
  bool is_set = false;
};

struct JsonPlace {
  const JsonSource* source = nullptr;
  std::size_t offset = 0;
};

struct JsonNode {
  enum class Kind { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  JsonPlace place = {};                 // of its first byte
  std::string text = {};                // of a string its characters; of a number, boolean or null as it was written
  std::vector<JsonNode> children = {};  // elements of an array, members of an object

  // Of a member of an object.
  std::string key = {};
  JsonPlace key_place = {};
};

}  // namespace detail

struct JsonDocument::Content {
  std::vector<std::shared_ptr<const detail::JsonSource>> sources;  // its own text, then one for each value that was set
  std::filesystem::path folder;                                    // of the file that it was read from
  detail::JsonNode root;

  // The strings that have been read as files, and which files they are.
  mutable std::mutex files_mutex;
  mutable std::unordered_map<const detail::JsonNode*, std::filesystem::path> files;
};

namespace detail {

// Parses the text of `source`, or throws a UsageError. The nodes point to `source`.
JsonNode parse_json(const JsonSource& source);

// "run.json:3:51", "--set train.epochs=5"
std::string to_string(const JsonPlace& place);

// On one line whatever it holds: quotes, backslashes and control characters escaped.
std::string printable(std::string_view text);
// The same, cut off where it is long.
std::string shown(std::string_view text);
std::string in_quotes(std::string_view text);
// The text alone, cut off there.
std::string cut_off(std::string_view text);

// What stands there, for messages: "an object", "\"adam\"".
std::string found(const JsonNode& node);
UsageError error_in(std::string_view place, std::string_view path, std::string_view what);
std::string missing_key(std::string_view key, const std::vector<std::string>& keys);

std::vector<std::string> keys_of(const JsonNode& object);
template <typename Node>
Node* find_member(Node& object, std::string_view key) {
  const auto member = std::ranges::find(object.children, key, &JsonNode::key);
  return member == object.children.end() ? nullptr : &*member;
}

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
