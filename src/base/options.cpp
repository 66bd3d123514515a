#include <tutti/base/options.hpp>

#include <algorithm>

#include <fmt/format.h>

namespace tutti {

std::optional<JsonValue> Options::find(std::string_view key) const {
  asked_->emplace_back(key);
  return object_.is_string() ? std::nullopt : object_.find(key);
}

JsonValue Options::at(std::string_view key) const {
  asked_->emplace_back(key);
  if (object_.is_string()) throw object_.expected(fmt::format("an object with \"name\" and \"{}\"", key));
  return object_.at(key);
}

std::int64_t Options::integer(std::string_view key, IntegerRange range) const { return at(key).integer(range); }

std::int64_t Options::integer(std::string_view key, IntegerRange range, std::int64_t otherwise) const {
  const std::optional<JsonValue> value = find(key);
  return value ? value->integer(range) : otherwise;
}

double Options::number(std::string_view key, NumberRange range, double otherwise) const {
  const std::optional<JsonValue> value = find(key);
  return value ? value->number(range) : otherwise;
}

bool Options::boolean(std::string_view key, bool otherwise) const {
  const std::optional<JsonValue> value = find(key);
  return value ? value->boolean() : otherwise;
}

std::string Options::choice(std::string_view key, const std::vector<std::string>& names,
                            std::string_view otherwise) const {
  const std::optional<JsonValue> value = find(key);
  return value ? value->one_of(names) : std::string(otherwise);
}

std::vector<std::int64_t> Options::sizes(std::string_view key, std::size_t count, IntegerRange range) const {
  const JsonValue value = at(key);
  if (!value.is_array()) return std::vector<std::int64_t>(count, value.integer(range));
  if (value.size() != count) {
    throw value.error(fmt::format("expected {} of them, or one number for all, found {}", count, value.size()));
  }
  std::vector<std::int64_t> sizes;
  for (const JsonValue& one : value.elements()) sizes.push_back(one.integer(range));
  return sizes;
}

std::vector<std::int64_t> Options::sizes(std::string_view key, std::size_t count, IntegerRange range,
                                         std::int64_t otherwise) const {
  return find(key) ? sizes(key, count, range) : std::vector<std::int64_t>(count, otherwise);
}

void Options::refuse_other_keys(std::vector<std::string> known) const {
  if (object_.is_string()) return;
  for (const std::string& key : *asked_) {
    if (std::ranges::find(known, key) == known.end()) known.push_back(key);
  }
  object_.refuse_other_keys(known);
}

}  // namespace tutti
