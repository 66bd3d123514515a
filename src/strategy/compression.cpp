#include <tutti/strategy/compression.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<Compression>> kNames = {"NoCompression", "TopK", "Float16",
                                                                                   "BFloat16", "PowerSgd"};

std::string_view name_of(const Compression& compression) { return kNames[compression.index()]; }

// The number that a TopK or PowerSgd comes with; the others stand alone.
std::optional<std::string> number_of(const Compression& compression) {
  if (const TopK* top_k = std::get_if<TopK>(&compression)) return fmt::format("{}", top_k->fraction);
  if (const PowerSgd* power_sgd = std::get_if<PowerSgd>(&compression)) return fmt::format("{}", power_sgd->rank);
  return std::nullopt;
}

std::optional<Compression> compression_named(std::string_view name) {
  for (const Compression& compression : compressions()) {
    if (name_of(compression) == name) return compression;
  }
  return std::nullopt;
}

std::optional<Compression> compression_nearest_to(std::string_view name, const std::vector<Compression>& choices) {
  std::vector<std::string> names;
  for (const Compression& compression : choices) names.emplace_back(name_of(compression));
  const auto meant = nearest_name(name, names);
  return meant ? compression_named(*meant) : std::nullopt;
}

// {"TopK": 0.01}, with the blank that people write and nlohmann-json does not.
std::string json_text(const Compression& compression) {
  const auto number = number_of(compression);
  return number ? fmt::format("{{\"{}\": {}}}", name_of(compression), *number)
                : fmt::format("\"{}\"", name_of(compression));
}

// "NoCompression, TopK:0.01, ... or PowerSgd:2", each as `write` writes it.
std::string every_compression(const std::vector<Compression>& choices, std::string (*write)(const Compression&)) {
  std::string result;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) result += i + 1 == choices.size() ? " or " : ", ";
    result += write(choices[i]);
  }
  return result;
}

UsageError unknown(const JsonValue& value, const std::vector<Compression>& choices) {
  const std::string expected = fmt::format("a compression: {}", every_compression(choices, json_text));
  const auto meant = value.is_string() ? compression_nearest_to(value.string(), choices) : std::nullopt;
  if (!meant) return value.expected(expected);
  return value.error(
      fmt::format("expected {}; found \"{}\", did you mean {}?", expected, value.string(), json_text(*meant)));
}

Compression from_json_object(const JsonValue& object, const std::vector<Compression>& choices) {
  const std::vector<std::string> keys = object.keys();
  if (keys.empty()) throw unknown(object, choices);
  if (const auto meant = compression_nearest_to(keys.front(), choices); meant && !number_of(*meant)) {
    throw object.error(fmt::format("{} stands alone: expected {}, found an object with the key \"{}\"", name_of(*meant),
                                   json_text(*meant), keys.front()));
  }
  if (const auto fraction = object.find("TopK")) {
    object.refuse_other_keys({"TopK"});
    return TopK{.fraction = fraction->number({.min = 0, .max = 1, .min_excluded = true})};
  }
  if (const auto rank = object.find("PowerSgd")) {
    object.refuse_other_keys({"PowerSgd"});
    rank->integer({.min = 1});  // asked apart from the upper bound, which would only distract in the message
    return PowerSgd{.rank = static_cast<int>(rank->integer({.max = std::numeric_limits<int>::max()}))};
  }
  std::vector<std::string> expected;
  for (const Compression& compression : choices) {
    if (number_of(compression)) expected.emplace_back(name_of(compression));
  }
  object.refuse_other_keys(expected);
  throw unknown(object, choices);
}

template <typename Number>
bool is_read(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  return problem == std::errc{} && rest == end;
}

}  // namespace

std::vector<Compression> compressions() { return {NoCompression{}, TopK{}, Float16{}, BFloat16{}, PowerSgd{}}; }

void validate(const Compression& compression) {
  const TopK* top_k = std::get_if<TopK>(&compression);
  if (top_k != nullptr && !(top_k->fraction > 0 && top_k->fraction <= 1))
    throw UsageError(fmt::format("the fraction of a TopK must be above 0 and at most 1, found {}", top_k->fraction));
  const PowerSgd* power_sgd = std::get_if<PowerSgd>(&compression);
  if (power_sgd != nullptr && power_sgd->rank < 1)
    throw UsageError(fmt::format("the rank of a PowerSgd must be at least 1, found {}", power_sgd->rank));
}

std::string to_string(const Compression& compression) {
  const auto number = number_of(compression);
  return number ? fmt::format("{}:{}", name_of(compression), *number) : std::string(name_of(compression));
}

Compression parse_compression(std::string_view text) {
  if (text.starts_with('{') || text.starts_with('"'))
    return compression_from_json(JsonDocument::parse(text, "compression").root());
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  auto compression = compression_named(name);
  if (!compression) {
    const auto meant = compression_nearest_to(name, compressions());
    throw UsageError(fmt::format("'{}' is no compression; expected {}{}", text,
                                 every_compression(compressions(), to_string),
                                 meant ? fmt::format("; did you mean {}?", name_of(*meant)) : ""));
  }
  if (colon == text.size()) return *compression;
  const std::string_view number = text.substr(colon + 1);
  if (TopK* top_k = std::get_if<TopK>(&*compression)) {
    if (!is_read(number, top_k->fraction))
      throw UsageError(fmt::format(
          "the fraction of a TopK must be a number above 0 and at most 1, as in TopK:0.01; found '{}'", text));
  } else if (PowerSgd* power_sgd = std::get_if<PowerSgd>(&*compression)) {
    if (!is_read(number, power_sgd->rank))
      throw UsageError(fmt::format(
          "the rank of a PowerSgd must be a whole number of at least 1, as in PowerSgd:2; found '{}'", text));
  } else {
    throw UsageError(fmt::format("{0} stands alone: expected '{0}', found '{1}'", name, text));
  }
  validate(*compression);
  return *compression;
}

nlohmann::json to_json(const Compression& compression) {
  if (const TopK* top_k = std::get_if<TopK>(&compression)) return nlohmann::json::object({{"TopK", top_k->fraction}});
  if (const PowerSgd* power_sgd = std::get_if<PowerSgd>(&compression))
    return nlohmann::json::object({{"PowerSgd", power_sgd->rank}});
  return name_of(compression);
}

Compression compression_from_json(const JsonValue& value, const std::vector<Compression>& choices) {
  if (value.is_object()) return from_json_object(value, choices);
  const auto compression = value.is_string() ? compression_named(value.string()) : std::nullopt;
  const auto is_it = [&](const Compression& choice) { return choice.index() == compression->index(); };
  if (!compression || std::ranges::none_of(choices, is_it)) throw unknown(value, choices);
  if (number_of(*compression)) throw value.expected(fmt::format("{}, with its number", json_text(*compression)));
  return *compression;
}

}  // namespace tutti
