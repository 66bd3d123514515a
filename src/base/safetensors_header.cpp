#include "safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

#include "json_node.hpp"

namespace tutti::detail {
namespace {

using nlohmann::json;
using Entry = SafetensorsHeader::Entry;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kMostDimensions = 64;  // as torch has it

constexpr std::string_view type_name(DataType type) {
  switch (type) {
    case DataType::float32: return "F32";
    case DataType::float64: return "F64";
    case DataType::float16: return "F16";
    case DataType::bfloat16: return "BF16";
    case DataType::int32: return "I32";
    case DataType::int64: break;
  }
  return "I64";
}

// What the format has besides, and tutti does not compute with.
constexpr std::array<std::string_view, 13> kOtherTypes{
    "BOOL", "U8", "I8", "I16", "U16", "U32", "U64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"};

DataType type_named(std::string_view name, std::string_view array) {
  std::vector<std::string_view> known;
  for (const DataType type : kAllDataTypes) {
    if (name == type_name(type)) return type;
    known.push_back(type_name(type));
  }
  const bool is_other = std::ranges::find(kOtherTypes, name) != kOtherTypes.end();
  throw Error(fmt::format("{} is of type {}, which {}; supported are {}", in_quotes(array), in_quotes(name),
                          is_other ? "is not supported" : "safetensors does not have", fmt::join(known, ", ")));
}

std::string json_text(std::string_view text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw UsageError(fmt::format("{} is not UTF-8", in_quotes(text)));
  }
}

// nlohmann-json calls a function for each value, key and bracket. Nothing but the one form that a header has is taken,
// at once: so no text makes this keep more than a few times its own size.
class Parser {
 public:
  SafetensorsHeader parse(std::string_view text) {
    // nlohmann-json would skip a byte order mark, and take a NUL for the end.
    if (!text.starts_with('{')) throw Error("its header does not begin with '{': it is not a safetensors file");
    if (const std::size_t nul = text.find('\0'); nul != text.npos) fail_at(nul);
    json::sax_parse(text.begin(), text.end(), this);
    return std::move(header_);
  }

  // What nlohmann-json calls.
  bool null() { unexpected("null"); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { unexpected(fmt::to_string(value)); }  // a negative one
  bool number_float(double, const std::string& text) { unexpected(shown(text)); }
  bool binary(json::binary_t&) { return false; }  // never in a text

  bool number_unsigned(std::uint64_t value) {
    if (in_ == In::shape) {
      if (entry().layout.shape.size() == kMostDimensions)
        throw Error(fmt::format("{} has more than {} dimensions", in_quotes(entry().layout.name), kMostDimensions));
      // Any beyond is refused with the whole shape.
      constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
      entry().layout.shape.push_back(static_cast<std::int64_t>(std::min(value, kMost)));
    } else if (in_ == In::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      unexpected(fmt::to_string(value));
    }
    return true;
  }

  bool string(std::string& text) {
    if (in_ == In::metadata) {
      if (!header_.metadata.emplace(key_, std::move(text)).second) given_twice(kMetadataKey);
    } else if (in_ == In::entry && field_ == kDtype) {
      entry().layout.type = type_named(text, entry().layout.name);
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool key(std::string& name) {
    key_ = std::move(name);
    if (in_ == In::entry) {
      const auto field = std::ranges::find(kFieldNames, key_);
      if (field == kFieldNames.end()) {
        throw Error(
            fmt::format("{} has {}, which safetensors does not have", in_quotes(entry().layout.name), in_quotes(key_)));
      }
      field_ = static_cast<std::size_t>(field - kFieldNames.begin());
      if (std::exchange(has_field_[field_], true)) given_twice(entry().layout.name);
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (in_ == In::document) {
      in_ = In::header;
    } else if (in_ == In::header && key_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) given_twice("the header");
      in_ = In::metadata;
    } else if (in_ == In::header) {
      header_.entries.emplace_back().layout.name = key_;
      has_field_.fill(false);
      in_ = In::entry;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (in_ == In::entry) {
      for (std::size_t i = 0; i < kFieldNames.size(); ++i) {
        if (!has_field_[i])
          throw Error(fmt::format("{} has no {}", in_quotes(entry().layout.name), in_quotes(kFieldNames[i])));
      }
    }
    in_ = In::header;
    return true;
  }

  bool start_array(std::size_t) {
    if (in_ != In::entry || field_ == kDtype) unexpected("an array");
    in_ = field_ == kShape ? In::shape : In::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() {
    if (in_ == In::offsets && offsets_ != 2)
      throw Error(fmt::format("the \"data_offsets\" of {} are not two", in_quotes(entry().layout.name)));
    in_ = In::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    fail_at(position == 0 ? 0 : position - 1);
  }

 private:
  enum class In { document, header, metadata, entry, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFieldNames{"dtype", "shape", "data_offsets"};
  static constexpr std::size_t kDtype = 0;
  static constexpr std::size_t kShape = 1;

  Entry& entry() { return header_.entries.back(); }

  [[noreturn]] void fail_at(std::size_t offset) const {
    throw Error(fmt::format("its header is not JSON, from byte {} of it on", offset));
  }

  [[noreturn]] void given_twice(std::string_view where) const {
    throw Error(fmt::format("{} is given twice in {}", in_quotes(key_), shown(where)));
  }

  [[noreturn]] void unexpected(std::string_view found) const {
    throw Error(fmt::format("its header has {} where {} belongs", found, expected()));
  }

  std::string expected() const {
    const auto of_entry = [&](std::string_view what) {
      return fmt::format("{} of {}", what, in_quotes(header_.entries.back().layout.name));
    };
    switch (in_) {
      case In::document: return "an object";
      case In::header: return fmt::format("an object for {}", in_quotes(key_));
      case In::metadata: return fmt::format("a string for {} of \"__metadata__\"", in_quotes(key_));
      case In::entry: return of_entry(field_ == kDtype ? "a string for \"dtype\"" : "an array for " + json_text(key_));
      case In::shape: return of_entry("a whole number from 0 on in the \"shape\"");
      case In::offsets: break;
    }
    return of_entry("one of two whole numbers from 0 on in the \"data_offsets\"");
  }

  SafetensorsHeader header_;
  In in_ = In::document;
  std::string key_;
  bool has_metadata_ = false;
  // Of the entry at hand.
  std::size_t field_ = kDtype;
  std::array<bool, kFieldNames.size()> has_field_{};
  int offsets_ = 0;
};

void refuse_equal_names(const std::vector<Entry>& entries) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) names.push_back(entry.layout.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error(fmt::format("{} is given twice in the header", in_quotes(*twice)));
}

void check_size(const Entry& entry) {
  const std::string_view name = entry.layout.name;
  const auto elements = element_count(entry.layout.shape);
  if (!elements) throw Error(fmt::format("{}: no array is {}", in_quotes(name), to_string(entry.layout)));
  if (entry.begin > entry.end)
    throw Error(fmt::format("the data of {} ends at byte {}, before it begins at byte {}", in_quotes(name), entry.end,
                            entry.begin));
  const std::uint64_t bytes = static_cast<std::uint64_t>(*elements) * size_of(entry.layout.type);
  if (entry.end - entry.begin != bytes) {
    throw Error(fmt::format("{} is {}, which takes {} bytes, and its data has {}", in_quotes(name),
                            to_string(entry.layout), bytes, entry.end - entry.begin));
  }
}

void check_places(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t described = 0;
  for (const Entry& entry : header.entries) {
    check_size(entry);
    described = std::max(described, entry.end);
  }
  if (described != data_bytes) {
    throw Error(fmt::format("its header describes {} bytes of data, and {} follow{}", described, data_bytes,
                            data_bytes < described ? ": the file is cut short" : ""));
  }
  std::uint64_t reached = 0;
  for (const std::size_t index : header.order_of_data()) {
    const Entry& entry = header.entries[index];
    if (entry.begin > reached)
      throw Error(fmt::format("bytes {} to {} of its data belong to no array", reached, entry.begin - 1));
    if (entry.begin < reached)
      throw Error(fmt::format("the data of {} overlaps that of another array", in_quotes(entry.layout.name)));
    reached = entry.end;
  }
}

}  // namespace

std::vector<std::size_t> SafetensorsHeader::order_of_data() const {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Where an empty array and another begin at the same byte, the empty one comes first.
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::pair(entries[i].begin, entries[i].end); });
  return order;
}

SafetensorsHeader plan_safetensors(std::vector<ParameterLayout> arrays, std::map<std::string, std::string> metadata) {
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  for (ParameterLayout& layout : arrays) header.entries.push_back({std::move(layout)});
  std::vector<std::size_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t i) { return size_of(header.entries[i].layout.type); });
  std::uint64_t next = 0;
  for (const std::size_t index : order) {
    header.entries[index].begin = next;
    header.entries[index].end = next += byte_count(header.entries[index].layout);
  }
  return header;
}

std::string to_text(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (!header.metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [name, text] : header.metadata) texts.push_back(json_text(name) + ":" + json_text(text));
    members.push_back(fmt::format("{}:{{{}}}", json_text(kMetadataKey), fmt::join(texts, ",")));
  }
  for (const Entry& entry : header.entries) {
    if (entry.layout.name == kMetadataKey)
      throw UsageError(fmt::format("no array can be named {} there", json_text(kMetadataKey)));
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  json_text(entry.layout.name), type_name(entry.layout.type),
                                  fmt::join(entry.layout.shape, ","), entry.begin, entry.end));
  }
  std::string text = fmt::format("{{{}}}", fmt::join(members, ","));
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > kMostHeaderBytes)
    throw UsageError(fmt::format("its header would take {} bytes, and {} are the most", text.size(), kMostHeaderBytes));
  return text;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
  SafetensorsHeader header = Parser().parse(text);
  refuse_equal_names(header.entries);
  check_places(header, data_bytes);
  return header;
}

std::optional<std::size_t> find_checksum(std::string_view text, std::string_view digits) {
  const std::string key = json_text(kChecksumKey);
  const std::string_view blanks = " \t\r\n";
  // Skips blanks and one character, if it is that one; beyond the text otherwise, where nothing is found.
  const auto past = [&](std::size_t at, char character) {
    at = text.find_first_not_of(blanks, at);
    return at < text.size() && text[at] == character ? at + 1 : text.size();
  };
  for (std::size_t found = text.find(key); found != text.npos; found = text.find(key, found + 1)) {
    if (found > 0 && text[found - 1] == '\\') continue;  // a part of another key
    const std::size_t value = past(past(found + key.size(), ':'), '"');
    if (text.substr(value).starts_with(digits)) return value;
  }
  return std::nullopt;
}

}  // namespace tutti::detail
