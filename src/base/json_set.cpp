// Values of a document set by their path: `--set train.epochs=5`.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

#include "json_node.hpp"

namespace tutti {

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

// How many arrays and objects stand within each other.
int levels(const JsonNode& node) {
  int most = 0;
  for (const JsonNode& child : node.children) most = std::max(most, levels(child));
  return node.kind == Kind::array || node.kind == Kind::object ? most + 1 : 0;
}

// The nodes of a graph and their ids; of another object none.
std::vector<std::pair<std::string, JsonNode*>> nodes_in(JsonNode& object) {
  std::vector<std::pair<std::string, JsonNode*>> result;
  JsonNode* nodes = find_member(object, "nodes");
  if (!nodes || nodes->kind != Kind::array) return result;
  for (JsonNode& node : nodes->children) {
    const JsonNode* id = node.kind == Kind::object ? find_member(node, "id") : nullptr;
    if (id && id->kind == Kind::string) result.emplace_back(id->text, &node);
  }
  return result;
}

bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// Of a `--set path=text`: on one line, and otherwise as it was typed.
std::string set_name(std::string_view path, std::string_view text) {
  std::string name = fmt::format("--set {}={}", path, detail::cut_off(text));
  std::ranges::replace_if(
      name, [](unsigned char byte) { return byte < ' ' || byte == 0x7f; }, ' ');
  return name;
}

// One value to be set in a tree, or to be left out of it. The source and the path outlive it.
class JsonSet {
 public:
  JsonSet(const JsonSource& source, std::string_view path) : source_(source) { split(path); }

  void apply(JsonNode& root) {
    JsonNode value = read_value();
    JsonNode* target = &root;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step* next = i + 1 < steps_.size() ? &steps_[i + 1] : nullptr;
      target = steps_[i].index ? &element(*target, steps_[i]) : &member(*target, steps_[i], next);
    }
    descend(levels(value));
    value.key = std::move(target->key);
    value.key_place = target->key_place;
    *target = std::move(value);
  }

  // Where the path leads nowhere, there is nothing to leave out.
  void remove(JsonNode& root) {
    JsonNode* target = &root;
    for (std::size_t i = 0; i + 1 < steps_.size(); ++i) {
      const Step& step = steps_[i];
      if (!leads_on(*target, step)) return;
      target = step.index ? &element(*target, step) : &member(*target, step, &steps_[i + 1]);
    }
    const Step& last = steps_.back();
    if (last.index) throw error(last.before, "an element of an array cannot be left out");
    if (target->kind == Kind::object)
      std::erase_if(target->children, [&](const JsonNode& child) { return child.key == last.name; });
  }

 private:
  // To what an object has under a name, or to an element of an array.
  struct Step {
    std::string_view before;  // the path up to here
    std::string_view name = {};
    std::optional<std::uint32_t> index = {};
  };

  void split(std::string_view path) {
    if (path.empty()) throw error("", "the path is empty; expected one such as train.epochs");
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      std::size_t at = std::min(path.find('[', begin), end);
      // An element of the root has no name before it.
      if (at == begin && (begin > 0 || begin == end))
        throw error("", "the path has an empty part; expected names with dots between them, as in train.epochs");
      const std::string_view before = path.substr(0, begin == 0 ? 0 : begin - 1);
      if (at > begin) steps_.push_back({.before = before, .name = path.substr(begin, at - begin)});
      while (at < end) {
        const std::string_view rest = path.substr(at, end - at);
        const std::size_t length = rest.find(']') + 1;  // 0 where there is none
        const auto index =
            rest[0] == '[' && length > 2 ? read_number<std::uint32_t>(rest.substr(1, length - 2)) : std::nullopt;
        if (!index) {
          throw error(path.substr(0, at),
                      fmt::format("expected whole numbers in brackets, as in outputs[0], found {}", in_quotes(rest)));
        }
        steps_.push_back({.before = path.substr(0, at), .index = index});
        at += length;
      }
      begin = end + 1;
    }
  }

  JsonNode read_value() const {
    constexpr std::string_view blanks = " \t\r\n";
    const std::string_view text = source_.text;
    const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
    const std::string_view trimmed = text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
    const bool has_to_be_json = trimmed.find_first_of("{[\"") == 0;
    try {
      JsonNode value = detail::parse_json(source_);
      // In 7//8, the 8 is no comment.
      if (has_to_be_json || value.text == trimmed) return value;
    } catch (const UsageError&) {
      if (has_to_be_json) throw;
    }
    return {.kind = Kind::string, .place = {&source_, 0}, .text = source_.text};
  }

  static bool leads_on(JsonNode& node, const Step& step) {
    if (step.index) return node.kind == Kind::array && *step.index < node.children.size();
    if (node.kind != Kind::object) return false;
    if (find_member(node, step.name) != nullptr) return true;
    const auto nodes = nodes_in(node);
    return std::ranges::any_of(nodes, [&](const auto& its) { return its.first == step.name; });
  }

  JsonNode& element(JsonNode& array, const Step& step) {
    if (array.kind != Kind::array) throw expected("an array", array, step);
    if (*step.index >= array.children.size())
      throw expected(fmt::format("an array of at least {}", std::uint64_t{*step.index} + 1), array, step);
    descend(1);
    return array.children[*step.index];
  }

  JsonNode& member(JsonNode& object, const Step& step, const Step* next) {
    if (object.kind != Kind::object) throw expected("an object", object, step);
    descend(1);
    if (JsonNode* member = find_member(object, step.name)) return *member;
    const auto nodes = nodes_in(object);
    for (const auto& [id, node] : nodes) {
      if (id != step.name) continue;
      descend(1);  // the list of nodes
      return *node;
    }
    if (next && !nodes.empty()) throw no_node(object, step);
    if (next && next->index) throw error(step.before, missing_key(step.name, keys_of(object)));
    const JsonPlace place{&source_, 0};
    object.children.push_back(
        {.kind = Kind::object, .place = place, .key = std::string(step.name), .key_place = place});
    return object.children.back();
  }

  void descend(int by) {
    depth_ += by;
    if (depth_ > kMaxJsonDepth)
      throw error("", fmt::format("expected at most {} levels of nesting, found more", kMaxJsonDepth));
  }

  UsageError no_node(JsonNode& object, const Step& step) const {
    std::vector<std::string> known = keys_of(object);
    for (const auto& [id, node] : nodes_in(object)) known.push_back(id);
    const std::string what = fmt::format("there is no key or node {}; ", in_quotes(step.name));
    if (const auto meant = nearest_name(step.name, known))
      return error(step.before, what + fmt::format("did you mean {}?", in_quotes(*meant)));
    const std::string path = fmt::format("{}{}{}", step.before, step.before.empty() ? "" : ".", step.name);
    return error(step.before,
                 what + fmt::format("to add a key, set all of it: --set {}={{...}}", detail::printable(path)));
  }

  UsageError expected(std::string_view what, const JsonNode& instead, const Step& step) const {
    return error(step.before,
                 fmt::format("expected {}, found {} ({})", what, found(instead), to_string(instead.place)));
  }

  UsageError error(std::string_view path, std::string_view what) const { return error_in(source_.name, path, what); }

  const JsonSource& source_;
  std::vector<Step> steps_;
  int depth_ = 0;  // of the value that the steps have come to
};

}  // namespace

std::shared_ptr<JsonDocument::Content> JsonDocument::copy_with(std::shared_ptr<const JsonSource> source) const {
  auto content = std::make_shared<Content>();
  content->sources = content_->sources;
  content->sources.push_back(std::move(source));
  content->folder = content_->folder;
  content->root = content_->root;
  return content;
}

JsonDocument JsonDocument::with(std::string_view path, std::string_view text) const {
  const auto source = std::make_shared<const JsonSource>(
      JsonSource{.name = set_name(path, text), .text = std::string(text), .is_set = true});
  if (!is_utf8(path) || !is_utf8(text)) throw UsageError(detail::printable(source->name) + ": this is no UTF-8 text");
  auto content = copy_with(source);
  JsonSet(*source, path).apply(content->root);
  return JsonDocument(std::move(content));
}

JsonDocument JsonDocument::without(std::string_view path) const {
  const auto source =
      std::make_shared<const JsonSource>(JsonSource{.name = std::string(path), .text = {}, .is_set = true});
  auto content = copy_with(source);
  JsonSet(*source, path).remove(content->root);
  return JsonDocument(std::move(content));
}

}  // namespace tutti
