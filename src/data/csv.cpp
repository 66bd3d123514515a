#include <tutti/data/csv.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/nearest_name.hpp>

#include "file_text.hpp"

namespace tutti {
namespace {

std::string_view without_spaces(const char* first, const char* last) {
  while (first != last && *first == ' ') ++first;
  while (first != last && last[-1] == ' ') --last;
  return {first, static_cast<std::size_t>(last - first)};
}

// Part of a sentence: no line of a terminal is filled by a field that never ends.
std::string shown(std::string_view field) {
  constexpr std::size_t kMost = 40;
  return field.size() <= kMost ? std::string(field) : std::string(field.substr(0, kMost)) + "...";
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& path, CsvOptions options)
    : CsvReader(detail::read_text(path), path.string(), options) {}

CsvReader::CsvReader(std::string text, std::string name, CsvOptions options)
    : text_(std::move(text)), name_(std::move(name)), options_(options), at_(text_.data()) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r' || options.separator == ' ')
    throw UsageError("a quote, a space or a line end separates no columns");
  // The first row says how many columns there are.
  if (!read_row()) throw error("the file is empty");
  column_count_ = fields_.size();
  if (options.header) {
    names_.assign(fields_.begin(), fields_.end());
    if (std::ranges::all_of(fields_, [](std::string_view field) { return number_in(field).has_value(); }))
      throw error(line_, "expected the names of the columns, found numbers; is there no header?");
  } else {
    at_ = text_.data();
    next_line_ = 1;
  }
  fields_.clear();
}

std::size_t CsvReader::column(std::string_view name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end()) {
    if (names_.empty()) throw error(fmt::format("there is no column '{}': there is no header", name));
    const std::optional<std::string> meant = nearest_name(name, names_);
    throw error(fmt::format("there is no column '{}'; {}", name,
                            meant ? fmt::format("did you mean '{}'?", *meant)
                                  : fmt::format("expected one of {}", fmt::join(names_, ", "))));
  }
  if (std::find(found + 1, names_.end(), name) != names_.end())
    throw error(fmt::format("there are several columns '{}'", name));
  return static_cast<std::size_t>(found - names_.begin());
}

bool CsvReader::next() {
  if (!read_row()) return false;
  if (fields_.size() != column_count_)
    throw error(line_, fmt::format("expected {} columns, found {}", column_count_, fields_.size()));
  return true;
}

bool CsvReader::read_row() {
  const char* const end = text_.data() + text_.size();
  const auto is_line_end = [&](const char* at) {
    return *at == '\n' || (*at == '\r' && at + 1 != end && at[1] == '\n');
  };
  const char* at = at_;
  for (; at != end && is_line_end(at); ++at) {
    if (*at == '\r') ++at;
    ++next_line_;
  }
  fields_.clear();
  line_ = next_line_;
  if (at == end) {
    at_ = end;
    return false;
  }
  for (;;) {
    const char* first = at;
    while (first != end && *first == ' ') ++first;
    if (first != end && *first == '"') {
      at = read_quoted(first);
    } else {
      while (at != end && *at != options_.separator && *at != '\n') ++at;
      const bool has_return = at != first && at[-1] == '\r' && (at == end || *at == '\n');
      fields_.push_back(without_spaces(first, has_return ? at - 1 : at));
    }
    if (at == end) break;
    if (*at++ != '\n') continue;  // past the separator
    ++next_line_;
    break;
  }
  at_ = at;
  return true;
}

// From the opening quote to the separator or the line end after the field.
const char* CsvReader::read_quoted(const char* at) {
  const char* const end = text_.data() + text_.size();
  const std::int64_t start_line = next_line_;
  const char* first = ++at;
  std::string* copy = nullptr;  // only where quotes are doubled
  for (;; ++at) {
    if (at == end) throw error(start_line, "a field in quotes has no end");
    if (*at == '\n') ++next_line_;
    if (*at != '"') continue;
    if (copy == nullptr && at + 1 != end && at[1] == '"') copy = &unquoted_.emplace_back();
    if (copy != nullptr) copy->append(first, at);
    if (at + 1 == end || at[1] != '"') break;
    first = ++at;  // the second of the two belongs to what follows
  }
  fields_.push_back(copy != nullptr ? std::string_view(*copy)
                                    : std::string_view(first, static_cast<std::size_t>(at - first)));
  ++at;
  while (at != end && (*at == ' ' || *at == '\r')) ++at;
  if (at != end && *at != options_.separator && *at != '\n')
    throw error(next_line_, fmt::format("expected '{}' after a field in quotes, found '{}'", options_.separator, *at));
  return at;
}

std::optional<double> CsvReader::number_in(std::string_view text) {
  const char* first = text.data();
  const char* const last = first + text.size();
  if (text.size() > 1 && *first == '+' && first[1] != '-') ++first;
  double number = 0;
  const auto [end, problem] = std::from_chars(first, last, number);
  if (problem != std::errc() || end != last || !std::isfinite(number)) return std::nullopt;
  return number;
}

double CsvReader::number(std::size_t column) const {
  const std::optional<double> number = number_in(field(column));
  if (!number) throw error(line_, column, fmt::format("expected a number, found '{}'", shown(field(column))));
  return *number;
}

UsageError CsvReader::error(std::int64_t line, std::string_view what) const {
  return UsageError(fmt::format("{}:{}: {}", name_, line, what));
}

UsageError CsvReader::error(std::int64_t line, std::size_t column, std::string_view what) const {
  const std::string which = names_.empty() ? std::to_string(column) : fmt::format("'{}'", names_[column]);
  return error(line, fmt::format("column {}: {}", which, what));
}

UsageError CsvReader::error(std::string_view what) const { return UsageError(fmt::format("{}: {}", name_, what)); }

}  // namespace tutti
