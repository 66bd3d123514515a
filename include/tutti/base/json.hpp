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
//
// Values can be set from the command line; their errors name the option instead of a line:
//
//   document = document.with("data.batch_size", "0").with("graph.body.conv1.filters", "64");
//
//   --set data.batch_size=0: data.batch_size: expected a whole number of at least 1, found 0
//
// A copy that finds its files from any folder, once everything has been read:
//
//   std::string copy = document.root().raw_with_files().dump();
//
// Several threads may read a document at once.
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
struct JsonPlace;
struct JsonSource;
}  // namespace detail

// Deeper than any run file, and shallow enough for every recursion over a document.
inline constexpr int kMaxJsonDepth = 512;

class JsonDocument {
 public:
  // `name` stands for the text in error messages.
  static JsonDocument parse(std::string_view text, std::string name = "JSON");
  static JsonDocument read_file(const std::filesystem::path& path);

  JsonValue root() const;

  // A document in which `text` stands at `path`, as `--set path=text` asks for; this one stays as it is.
  //
  // A path has dots between its keys, and elements of lists in brackets: "train.epochs", "metrics[1].k". Where an
  // object has nodes, these go by their ids, after the keys of the object: "graph.strategy.type",
  // "graph.body.conv1.filters". What is not there is added at the end, with the objects on the way to it; but of an
  // object with nodes, nothing is made on the way: more likely, an id is misspelt.
  //
  // The text is JSON, or else a string: "5", "[1, 2]", "adam". One that begins with a bracket, brace or quote has to be
  // JSON.
  JsonDocument with(std::string_view path, std::string_view text) const;
  // A document in which nothing stands at `path`; it may have been so before. A node is not left out.
  JsonDocument without(std::string_view path) const;

  // Shared by the document and its values, which stay valid without it.
  struct Content;

 private:
  static JsonDocument parse(std::string_view text, std::string name, std::filesystem::path folder);
  explicit JsonDocument(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<Content> copy_with(std::shared_ptr<const detail::JsonSource> source) const;

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
  // nothing is there. Of a value that was set, the other way round: on the command line, users name what they see.
  std::filesystem::path file_path() const;
  // The same; a UsageError where it is in neither place.
  std::filesystem::path existing_file() const;
  // One, or a list of them, in its order; or a name with '*' in it, such as "clients/*.csv": all files of the folder
  // that a shell would take for it, in the order of their names, and at least one.
  std::vector<std::filesystem::path> existing_files() const;
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
  // The same with an absolute path for every string that was read with file_path(), by whichever thread: that of the
  // file that it found. A document made by with() begins with none.
  nlohmann::ordered_json raw_with_files() const;

  // A UsageError at this place: "run.json:3:51: data.batch_size: <what>", or "--set data.batch_size=0: ...".
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
  // Where a name is found, which raw_with_files() then has; with what stands behind it, where it is a folder's.
  std::filesystem::path found_path(const std::filesystem::path& named, const std::filesystem::path& pattern) const;
  UsageError error_at(const detail::JsonPlace& place, std::string_view what) const;
  const detail::JsonNode& as_object() const;
  const detail::JsonNode& as_array() const;

  std::shared_ptr<const JsonDocument::Content> content_;
  const detail::JsonNode* node_;
  std::string path_;
  std::size_t last_part_ = 0;  // how much of path_ stands before its last part
};

}  // namespace tutti
