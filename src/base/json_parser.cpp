#include <algorithm>
#include <cstdint>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/nearest_name.hpp>

#include "json_node.hpp"

namespace tutti::detail {
namespace {

using nlohmann::json;
using Kind = JsonNode::Kind;

constexpr std::string_view kFittingNumber = "a number that 64-bit floating point can hold";

// nlohmann-json reads the text and calls a function for each value, key and closing bracket, without its place. The
// place is found here: a token begins after the one before, past blanks, comments and separators, and ends where
// reading has come to.
class Parser {
 public:
  explicit Parser(const JsonSource& source) : source_(source) {}

  JsonNode document() {
    if (text_.starts_with("\xef\xbb\xbf"))
      throw error("the text begins with a byte order mark; save it as UTF-8 without one");
    // nlohmann-json would take it for the end of the text.
    if (const std::size_t nul = text_.find('\0'); nul != text_.npos)
      throw UsageError(to_string(JsonPlace{&source_, nul}) + ": a NUL byte: this is no UTF-8 text");
    json::sax_parse(input_, this, json::input_format_t::json, /*strict=*/true, /*ignore_comments=*/true);
    return std::move(root_);
  }

  // What nlohmann-json calls. A number ends where it has read one character more.
  bool null() { return scalar(Kind::null, read()); }
  bool boolean(bool) { return scalar(Kind::boolean, read()); }
  bool number_integer(std::int64_t) { return scalar(Kind::number, read() - 1); }
  bool number_unsigned(std::uint64_t) { return scalar(Kind::number, read() - 1); }
  bool number_float(double, const std::string&) { return scalar(Kind::number, read() - 1); }
  bool string(std::string& text) {
    begin(Kind::string).text = std::move(text);
    return end(read());
  }
  bool binary(json::binary_t&) { return false; }  // never in a text
  bool start_array(std::size_t) { return open(Kind::array); }
  bool end_array() { return end(read()); }
  bool start_object(std::size_t) { return open(Kind::object); }
  bool end_object() { return end(read()); }

  bool key(std::string& name) {
    skip_to_token();
    const auto [first, is_new] = open_.back().keys.emplace(name, offset_);
    if (!is_new) {
      const std::string where = source_.is_set ? "" : ", first at " + to_string(JsonPlace{&source_, first->second});
      throw error(fmt::format("the key {} is given twice{}", in_quotes(name), where));
    }
    JsonNode& member = open_.back().node->children.emplace_back();
    member.key = std::move(name);
    member.key_place = {&source_, offset_};
    offset_ = read();
    return true;
  }

  // What it says is "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error while parsing array
  // - unexpected ':'; expected ']'" or, of a token wrong in itself, "... - invalid literal; last read: '...'".
  bool parse_error(std::size_t, const std::string&, const json::exception& problem) {
    skip_to_token();
    offset_ = std::min(offset_, read() - 1);                  // the token may be a separator
    if (problem.id == 406) throw unexpected(kFittingNumber);  // "number overflow"
    std::string_view what = problem.what();
    what = what.substr(0, what.find("; last read"));
    const std::string_view wrong = what.substr(std::min(what.find("invalid "), what.size()));
    if (wrong.starts_with("invalid string") && (text_[read() - 1] == '\n' || text_[read() - 1] == '\r'))
      throw error("this string is not closed on its line");
    if (!wrong.empty() && wrong != "invalid literal") throw error(wrong);
    const auto parsing = [&](const char* part) { return what.find(fmt::format("parsing {} -", part)) != what.npos; };
    throw unexpected(is_whole_                     ? end_of_text()
                     : parsing("object key")       ? "a key in double quotes"
                     : parsing("object separator") ? "a colon"
                     : parsing("object")           ? "a comma or '}'"
                     : parsing("array")            ? "a comma or ']'"
                                                   : "a value");
  }

 private:
  struct Open {
    JsonNode* node;
    std::unordered_map<std::string, std::size_t> keys;  // with their offsets
  };

  // How much of the text has been read.
  std::size_t read() { return text_.size() - static_cast<std::size_t>(input_.rdbuf()->in_avail()); }

  void skip_to_token() {
    while (true) {
      offset_ = std::min(text_.find_first_not_of(" \t\r\n,:", offset_), text_.size());
      std::size_t end = text_.npos;
      if (text_.compare(offset_, 2, "//") == 0) end = text_.find_first_of("\r\n", offset_);
      if (text_.compare(offset_, 2, "/*") == 0) end = text_.find("*/", offset_ + 2);
      if (end == text_.npos) return;
      offset_ = text_[end] == '*' ? end + 2 : end;
    }
  }

  JsonNode& begin(Kind kind) {
    skip_to_token();
    JsonNode* parent = open_.empty() ? nullptr : open_.back().node;
    if (parent && parent->kind == Kind::array) parent->children.emplace_back();  // a member came with its key
    JsonNode& node = parent ? parent->children.back() : root_;
    node.kind = kind;
    node.place = {&source_, offset_};
    open_.push_back({&node, {}});
    return node;
  }

  bool end(std::size_t offset) {
    offset_ = offset;
    open_.pop_back();
    is_whole_ = open_.empty();
    return true;
  }

  bool scalar(Kind kind, std::size_t offset) {
    JsonNode& node = begin(kind);
    node.text = text_.substr(offset_, offset - offset_);
    if (kind == Kind::number && !read_number<double>(node.text)) throw unexpected(kFittingNumber);
    return end(offset);
  }

  bool open(Kind kind) {
    begin(kind);
    if (open_.size() > kMaxJsonDepth)
      throw error(fmt::format("expected at most {} levels of nesting, found more", kMaxJsonDepth));
    offset_ = read();
    return true;
  }

  UsageError unexpected(std::string_view expected) const {
    const std::string word =
        text_.substr(offset_, std::max<std::size_t>(text_.find_first_of(" \t\r\n,:[]{}\"/", offset_) - offset_, 1));
    std::string found = offset_ < source_.text.size() ? "'" + shown(word) + "'" : std::string(end_of_text());
    if (word.starts_with('"')) found = "a string";
    const auto meant = nearest_name(word, {"true", "false", "null"});
    if (meant && expected == "a value") found += fmt::format("; did you mean {}?", *meant);
    return error(fmt::format("expected {}, found {}", expected, found));
  }

  std::string_view end_of_text() const { return source_.is_set ? "the end of the value" : "the end of the document"; }

  UsageError error(std::string_view what) const {
    return UsageError(fmt::format("{}: {}", to_string(JsonPlace{&source_, offset_}), what));
  }

  const JsonSource& source_;
  const std::string text_ = source_.text + '\n';  // so that a character comes after each number
  std::istringstream input_{text_};
  std::size_t offset_ = 0;  // where the last token ended, or this one begins
  std::vector<Open> open_;  // the values that have begun and not ended
  bool is_whole_ = false;   // the root has ended
  JsonNode root_;
};

}  // namespace

JsonNode parse_json(const JsonSource& source) { return Parser(source).document(); }

}  // namespace tutti::detail
