// Reading JSON so that every error names its place: the file and line, the path inside the document, what was found and
// what is allowed. Comments are allowed; a key given twice, or a key nobody asked for, is refused.
//
//   JsonDocument document = JsonDocument::read_file("run.json");
//   JsonValue data = document.root().at("data");
//   std::int64_t rows = data.at("batch_size").integer({.min = 1});
//   data.refuse_other_keys({"source", "batch_size"});
//
//   run.json:3:51: data.batch_size: expected a whole number of at least 1, found 0
//
// Lines and columns count from 1, columns in characters. Every failure here is a UsageError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti {

class JsonValue;

namespace detail {
struct JsonNode;
}

// Deeper than any run file, and shallow enough for every recursion over a document.
inline constexpr int kMaxJsonDepth = 512;

class JsonDocument {
 public:
  // `name` stands for the text in error messages.
  static JsonDocument parse(std::string_view text, std::string name = "JSON");
  static JsonDocument read_file(const std::filesystem::path& path);

  JsonValue root() const;

  // Shared by the document and its values, which stay valid without it.
  struct Content;

 private:
  static JsonDocument parse(std::string_view text, std::string name, std::filesystem::path folder);
  explicit JsonDocument(std::shared_ptr<const Content> content) : content_(std::move(content)) {}

  std::shared_ptr<const Content> content_;
};

struct IntegerRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;  // (min, ...
  bool max_excluded = false;  // ..., max)
};

// One value in a document, and the way to it. Cheap to copy.
class JsonValue {
 public:
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;
  bool is_boolean() const;
  bool is_null() const;

  // Each throws where the value is of another kind or out of range. Strings live as long as the document or any of its
  // values.
  bool boolean() const;
  std::int64_t integer(IntegerRange range = {}) const;  // written without point and exponent: 3, not 3.0
  std::uint64_t unsigned_integer() const;               // the same, up to 2^64 - 1: for seeds
  double number(NumberRange range = {}) const;          // finite
  const std::string& string() const;
  // A file that the document names: from the document's own folder, or from that which the process runs in where
  // nothing is there.
  std::filesystem::path file_path() const;
  // One of `names`; otherwise the error lists them and the nearest.
  const std::string& one_of(const std::vector<std::string>& names) const;

  // Of an object.
  JsonValue at(std::string_view key) const;
  std::optional<JsonValue> find(std::string_view key) const;
  std::vector<std::string> keys() const;  // in the order of the document
  void refuse_other_keys(const std::vector<std::string>& known) const;

  // Of an array.
  std::size_t size() const;
  JsonValue element(std::size_t index) const;
  std::vector<JsonValue> elements() const;

  // The same value under another last part of its path: nodes are known by their id, not by their index, so that
  // "graph.nodes[2]" becomes "graph.hidden".
  JsonValue named(std::string_view last_part) const;

  // "graph.body.conv1.filters", "graph.outputs[0]"; empty at the root.
  const std::string& path() const { return path_; }

  // A copy without places, keys in the order of the document.
  nlohmann::ordered_json raw() const;

  // A UsageError at this place: "run.json:3:51: data.batch_size: <what>".
  UsageError error(std::string_view what) const;
  // The same: "... data.batch_size: expected <what>, found 0".
  UsageError expected(std::string_view what) const;
  // The error itself where it names a place of this document; otherwise the same at this place.
  UsageError placed(const UsageError& error) const;

 private:
  friend class JsonDocument;

  JsonValue(std::shared_ptr<const JsonDocument::Content> content, const detail::JsonNode* node)
      : content_(std::move(content)), node_(node) {}

  JsonValue member(const detail::JsonNode& node) const;
  UsageError error_at(std::size_t offset, std::string_view what) const;
  const detail::JsonNode& as_object() const;
  const detail::JsonNode& as_array() const;

  std::shared_ptr<const JsonDocument::Content> content_;
  const detail::JsonNode* node_;
  std::string path_;
  std::size_t last_part_ = 0;  // how much of path_ stands before its last part
};

}  // namespace tutti
