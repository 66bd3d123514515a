#include <tutti/base/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <system_error>
#include <utility>

#include <fnmatch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "json_node.hpp"

namespace tutti {
namespace detail {
namespace {

constexpr std::size_t kShownCharacters = 40;

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

}  // namespace

std::string cut_off(std::string_view text) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!continues_character(text[i]) && characters++ == kShownCharacters)
      return std::string(text.substr(0, i)) + "...";
  }
  return std::string(text);
}

std::string to_string(const JsonPlace& place) {
  if (place.source->is_set) return place.source->name;
  const std::string_view before = std::string_view(place.source->text).substr(0, place.offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::string_view in_line = before.substr(before.rfind('\n') + 1);  // all where there is none
  const auto column = in_line.size() + 1 - std::count_if(in_line.begin(), in_line.end(), continues_character);
  return fmt::format("{}:{}:{}", place.source->name, line, column);
}

std::string printable(std::string_view text) {
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

std::string shown(std::string_view text) { return printable(cut_off(text)); }

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", shown(text)); }

std::string found(const JsonNode& node) {
  switch (node.kind) {
    case JsonNode::Kind::object: return node.children.empty() ? "an empty object" : "an object";
    case JsonNode::Kind::array:
      return node.children.empty() ? "an empty array" : fmt::format("an array of {}", node.children.size());
    case JsonNode::Kind::string: return in_quotes(node.text);
    default: return shown(node.text);
  }
}

UsageError error_in(std::string_view place, std::string_view path, std::string_view what) {
  return UsageError(path.empty() ? fmt::format("{}: {}", place, what)
                                 : fmt::format("{}: {}: {}", place, printable(path), what));
}

std::string missing_key(std::string_view key, const std::vector<std::string>& keys) {
  const auto meant = nearest_name(key, keys);
  return meant ? fmt::format("missing key {}; is {} meant to be it?", in_quotes(key), in_quotes(*meant))
               : fmt::format("missing key {}", in_quotes(key));
}

std::vector<std::string> keys_of(const JsonNode& object) {
  std::vector<std::string> keys;
  for (const JsonNode& child : object.children) keys.push_back(child.key);
  return keys;
}

}  // namespace detail

using detail::error_in;
using detail::find_member;
using detail::found;
using detail::in_quotes;
using detail::JsonNode;
using detail::JsonPlace;
using detail::JsonSource;
using detail::keys_of;
using detail::missing_key;
using detail::read_number;
using Kind = JsonNode::Kind;

namespace {

// "a", "b" or "c"
std::string list_in_quotes(const std::vector<std::string>& names, std::string_view last_separator) {
  std::string result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) result += i + 1 == names.size() ? last_separator : ", ";
    result += in_quotes(names[i]);
  }
  return result;
}

std::string describe(IntegerRange range) {
  const bool any_min = range.min == IntegerRange{}.min;
  const bool any_max = range.max == IntegerRange{}.max;
  if (any_min && any_max) return "a whole number";
  if (any_max) return fmt::format("a whole number of at least {}", range.min);
  if (any_min) return fmt::format("a whole number of at most {}", range.max);
  if (range.min == range.max) return fmt::format("the whole number {}", range.min);
  return fmt::format("a whole number from {} to {}", range.min, range.max);
}

std::string describe(NumberRange range) {
  const bool any_min = range.min == NumberRange{}.min;
  const bool any_max = range.max == NumberRange{}.max;
  if (any_min && any_max) return "a number";
  if (range.min == range.max) return fmt::format("the number {}", range.min);
  if (!any_min && !any_max && !range.min_excluded && !range.max_excluded)
    return fmt::format("a number from {} to {}", range.min, range.max);
  // "of" goes before "at least" and "at most", but is not said twice.
  std::string text = "a number";
  if (!any_min) text += fmt::format("{} {}", range.min_excluded ? " above" : " of at least", range.min);
  if (!any_min && !any_max) text += " and";
  if (!any_max) {
    text += range.max_excluded ? " below" : any_min ? " of at most" : " at most";
    text += fmt::format(" {}", range.max);
  }
  return text;
}

using Files = decltype(JsonDocument::Content::files);

nlohmann::ordered_json raw_of(const JsonNode& node, const Files& files) {
  switch (node.kind) {
    case Kind::object: {
      nlohmann::ordered_json::object_t members;
      // Each key is there once, and need not be looked for.
      for (const JsonNode& child : node.children) members.emplace_back(child.key, raw_of(child, files));
      return members;
    }
    case Kind::array: {
      nlohmann::ordered_json::array_t elements;
      for (const JsonNode& child : node.children) elements.push_back(raw_of(child, files));
      return elements;
    }
    case Kind::string: {
      const auto file = files.find(&node);
      return file == files.end() ? node.text : file->second.string();
    }
    default: return nlohmann::ordered_json::parse(node.text);
  }
}

}  // namespace

JsonDocument JsonDocument::parse(std::string_view text, std::string name) { return parse(text, std::move(name), {}); }

JsonDocument JsonDocument::parse(std::string_view text, std::string name, std::filesystem::path folder) {
  auto content = std::make_shared<Content>();
  content->sources.push_back(
      std::make_shared<const JsonSource>(JsonSource{.name = std::move(name), .text = std::string(text)}));
  content->folder = std::move(folder);
  content->root = detail::parse_json(*content->sources.back());
  return JsonDocument(std::move(content));
}

JsonDocument JsonDocument::read_file(const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view why) {
    throw UsageError(fmt::format("cannot read {}: {}", path.string(), why));
  };
  std::error_code problem;
  const std::filesystem::file_status status = std::filesystem::status(path, problem);
  if (status.type() == std::filesystem::file_type::not_found) refuse("there is no such file");
  if (status.type() == std::filesystem::file_type::directory) refuse("it is a directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const bool opened = file.is_open();
  std::string text;
  std::array<char, 1 << 16> block;
  while (file.read(block.data(), block.size()), file.gcount() > 0)
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  if (!opened || file.bad()) refuse(errno != 0 ? std::generic_category().message(errno) : "reading failed");
  return parse(text, path.string(), path.parent_path());
}

JsonValue JsonDocument::root() const { return {content_, &content_->root}; }

bool JsonValue::is_object() const { return node_->kind == Kind::object; }
bool JsonValue::is_array() const { return node_->kind == Kind::array; }
bool JsonValue::is_string() const { return node_->kind == Kind::string; }
bool JsonValue::is_number() const { return node_->kind == Kind::number; }
bool JsonValue::is_boolean() const { return node_->kind == Kind::boolean; }
bool JsonValue::is_null() const { return node_->kind == Kind::null; }

bool JsonValue::boolean() const {
  if (!is_boolean()) throw expected("true or false");
  return node_->text == "true";
}

std::int64_t JsonValue::integer(IntegerRange range) const {
  if (!is_number() || node_->text.find_first_of(".eE") != std::string::npos) throw expected(describe(range));
  const auto value = read_number<std::int64_t>(node_->text);
  if (!value) {
    // "a whole number" alone would not say what is wrong with a number of thirty digits.
    throw expected(node_->text.starts_with('-') ? fmt::format("a whole number of at least {}", range.min)
                                                : fmt::format("a whole number of at most {}", range.max));
  }
  if (*value < range.min || *value > range.max) throw expected(describe(range));
  return *value;
}

std::uint64_t JsonValue::unsigned_integer() const {
  const auto value = is_number() ? read_number<std::uint64_t>(node_->text) : std::nullopt;
  if (!value) throw expected("a whole number from 0 to 18446744073709551615");
  return *value;
}

double JsonValue::number(NumberRange range) const {
  if (!is_number()) throw expected(describe(range));
  const double value = read_number<double>(node_->text).value();
  const bool high_enough = range.min_excluded ? value > range.min : value >= range.min;
  const bool low_enough = range.max_excluded ? value < range.max : value <= range.max;
  if (!high_enough || !low_enough) throw expected(describe(range));
  return value;
}

const std::string& JsonValue::string() const {
  if (!is_string()) throw expected("a string");
  return node_->text;
}

std::filesystem::path JsonValue::file_path() const { return found_path(string(), ""); }

std::filesystem::path JsonValue::found_path(const std::filesystem::path& named,
                                            const std::filesystem::path& pattern) const {
  const std::filesystem::path beside = content_->folder / named;  // one that is absolute stays so
  std::error_code problem;
  const auto exists = [&](const std::filesystem::path& path) { return std::filesystem::exists(path, problem); };
  const bool is_here = node_->place.source->is_set && exists(named);
  std::filesystem::path file = !is_here && exists(beside) ? beside : named;
  const std::filesystem::path absolute = std::filesystem::absolute(file, problem).lexically_normal();
  if (!absolute.empty()) {  // the folder that the process runs in may be gone
    const std::scoped_lock lock(content_->files_mutex);
    content_->files.insert_or_assign(node_, pattern.empty() ? absolute : absolute / pattern);
  }
  return file;
}

std::vector<std::filesystem::path> JsonValue::existing_files() const {
  std::vector<std::filesystem::path> files;
  if (is_array()) {
    for (const JsonValue& value : elements()) files.push_back(value.existing_file());
    if (files.empty()) throw expected("at least one file");
    return files;
  }
  if (!is_string()) throw expected("a file, or a list of them");
  const std::filesystem::path named = string();
  const std::string pattern = named.filename().string();
  if (pattern.find('*') == std::string::npos) return {existing_file()};
  const std::filesystem::path folder =
      found_path(named.has_parent_path() ? named.parent_path() : std::filesystem::path("."), pattern);
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    if (entry.is_regular_file(problem) && fnmatch(pattern.c_str(), entry.path().filename().c_str(), FNM_PERIOD) == 0)
      files.push_back(entry.path());
  }
  if (files.empty())
    throw error(fmt::format("there is no file in '{}' that fits '{}'", folder.string(), detail::shown(pattern)));
  std::ranges::sort(files);
  return files;
}

std::filesystem::path JsonValue::existing_file() const {
  std::filesystem::path file = file_path();
  std::error_code problem;
  if (std::filesystem::exists(file, problem)) return file;
  throw error(
      fmt::format("there is no file '{}', neither beside the run file nor where this runs", detail::shown(string())));
}

const std::string& JsonValue::one_of(const std::vector<std::string>& names) const {
  if (is_string() && std::find(names.begin(), names.end(), node_->text) != names.end()) return node_->text;
  const std::string what = (names.size() > 2 ? "one of " : "") + list_in_quotes(names, " or ");
  const auto meant = is_string() ? nearest_name(node_->text, names) : std::nullopt;
  if (!meant) throw expected(what);
  throw error(fmt::format("expected {}, found {}; did you mean {}?", what, found(*node_), in_quotes(*meant)));
}

JsonValue JsonValue::at(std::string_view key) const {
  if (auto value = find(key)) return *std::move(value);
  throw error(missing_key(key, keys()));
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const JsonNode* child = find_member(as_object(), key);
  return child ? std::optional(member(*child)) : std::nullopt;
}

std::vector<std::string> JsonValue::keys() const { return keys_of(as_object()); }

void JsonValue::refuse_other_keys(const std::vector<std::string>& known) const {
  for (const JsonNode& child : as_object().children) {
    if (std::find(known.begin(), known.end(), child.key) != known.end()) continue;
    std::string what = fmt::format("unknown key {}; ", in_quotes(child.key));
    if (const auto meant = nearest_name(child.key, known))
      what += fmt::format("did you mean {}?", in_quotes(*meant));
    else if (known.empty())
      what += "no key is known here";
    else
      what += fmt::format("known {} {}", known.size() == 1 ? "is" : "are", list_in_quotes(known, " and "));
    throw error_at(child.key_place, what);
  }
}

std::size_t JsonValue::size() const { return as_array().children.size(); }

JsonValue JsonValue::element(std::size_t index) const {
  if (index >= size()) throw expected(fmt::format("an array of at least {}", index + 1));
  JsonValue value(content_, &node_->children[index]);
  value.path_ = fmt::format("{}[{}]", path_, index);
  value.last_part_ = last_part_;
  return value;
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> result;
  for (std::size_t i = 0; i < size(); ++i) result.push_back(element(i));
  return result;
}

JsonValue JsonValue::named(std::string_view last_part) const {
  JsonValue value = *this;
  value.path_.resize(last_part_);
  if (!value.path_.empty()) value.path_ += '.';
  value.path_ += last_part;
  return value;
}

nlohmann::ordered_json JsonValue::raw() const { return raw_of(*node_, {}); }

nlohmann::ordered_json JsonValue::raw_with_files() const {
  const std::scoped_lock lock(content_->files_mutex);
  return raw_of(*node_, content_->files);
}

UsageError JsonValue::error(std::string_view what) const { return error_at(node_->place, what); }

UsageError JsonValue::expected(std::string_view what) const {
  return error(fmt::format("expected {}, found {}", what, found(*node_)));
}

UsageError JsonValue::placed(const UsageError& error) const {
  const bool names_a_place = std::ranges::any_of(content_->sources, [&](const auto& source) {
    return std::string_view(error.what()).starts_with(source->name + ":");
  });
  return names_a_place ? error : this->error(error.what());
}

JsonValue JsonValue::member(const JsonNode& node) const {
  JsonValue value(content_, &node);
  value.path_ = path_.empty() ? node.key : fmt::format("{}.{}", path_, node.key);
  value.last_part_ = path_.size();
  return value;
}

UsageError JsonValue::error_at(const JsonPlace& place, std::string_view what) const {
  return error_in(to_string(place), path_, what);
}

const JsonNode& JsonValue::as_object() const {
  if (!is_object()) throw expected("an object");
  return *node_;
}

const JsonNode& JsonValue::as_array() const {
  if (!is_array()) throw expected("an array");
  return *node_;
}

}  // namespace tutti
