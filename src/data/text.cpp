// A text, character by character: {"source": "text", "file": "play.txt", "length": 64}. A row is a piece of so many
// characters, and its target the same piece one character on: after each, the one that comes next.
#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "file_text.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

// The bytes of the character that a text of UTF-8 begins with; nothing where it begins with none.
std::optional<std::string_view> first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return std::nullopt;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
  }
  if (length > 1) {
    // Longer than needed, half of a pair for UTF-16, or beyond the last character.
    const unsigned second = byte(1);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
        (first == 0xf4 && second > 0x8f))
      return std::nullopt;
  }
  return text.substr(0, length);
}

struct Tokens {
  std::vector<std::int32_t> numbers;    // for each character of the text
  std::vector<std::string> characters;  // by their numbers: those that the text has, in the order of Unicode
};

Tokens tokens_of(const std::filesystem::path& path, std::string_view text) {
  Tokens tokens;
  tokens.numbers.reserve(text.size());
  std::unordered_map<std::string_view, std::int32_t> first_seen;
  std::vector<std::string_view> seen;
  for (std::size_t at = 0; at < text.size();) {
    const std::optional<std::string_view> character = first_character(text.substr(at));
    if (!character) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
      throw UsageError(fmt::format("{}:{}: expected UTF-8, found the byte 0x{:02x}", path.string(), line,
                                   static_cast<unsigned char>(text[at])));
    }
    const auto [found, is_new] = first_seen.try_emplace(*character, static_cast<std::int32_t>(seen.size()));
    if (is_new) seen.push_back(*character);
    tokens.numbers.push_back(found->second);
    at += character->size();
  }
  // The order of Unicode is that of the bytes of UTF-8.
  std::vector<std::string_view> sorted = seen;
  std::ranges::sort(sorted);
  std::vector<std::int32_t> number_of_seen(seen.size());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    number_of_seen[static_cast<std::size_t>(first_seen.at(sorted[i]))] = static_cast<std::int32_t>(i);
  for (std::int32_t& number : tokens.numbers) number = number_of_seen[static_cast<std::size_t>(number)];
  tokens.characters.assign(sorted.begin(), sorted.end());
  return tokens;
}

// A text of the same characters, in pieces; what is left at the end fills none.
std::shared_ptr<const Dataset> read_pieces(const std::filesystem::path& path, const Tokens& known,
                                           std::int64_t length) {
  const Tokens its = tokens_of(path, read_text(path));
  std::vector<std::int64_t> numbers;
  for (const std::string& character : its.characters) {
    const auto found = std::ranges::lower_bound(known.characters, character);
    if (found == known.characters.end() || *found != character)
      throw UsageError(
          fmt::format("{}: the character '{}' is not in the text to train with", path.string(), character));
    numbers.push_back(found - known.characters.begin());
  }
  const std::int64_t rows = static_cast<std::int64_t>(its.numbers.size()) / length;
  if (rows == 0)
    throw UsageError(
        fmt::format("{}: expected at least {} characters, found {}", path.string(), length, its.numbers.size()));
  torch::Tensor pieces = torch::empty({rows, length}, torch::kInt64);
  for (std::int64_t i = 0; i < rows * length; ++i)
    pieces.data_ptr<std::int64_t>()[i] = numbers[static_cast<std::size_t>(its.numbers[static_cast<std::size_t>(i)])];
  return rows_without_target(pieces);
}

// Pieces that follow one another, and do not overlap.
class TextDataset : public Dataset {
 public:
  TextDataset(std::shared_ptr<const Tokens> tokens, std::int64_t length)
      : tokens_(std::move(tokens)), length_(length) {}

  // The last character is only a target.
  std::int64_t size() const override { return (static_cast<std::int64_t>(tokens_->numbers.size()) - 1) / length_; }

  DataRows rows(std::span<const std::int64_t> numbers) const override {
    const auto count = static_cast<std::int64_t>(numbers.size());
    const torch::Tensor input = torch::empty({count, length_}, torch::kInt64);
    const torch::Tensor target = torch::empty({count, length_}, torch::kInt64);
    auto* into_input = input.data_ptr<std::int64_t>();
    auto* into_target = target.data_ptr<std::int64_t>();
    for (const std::int64_t number : numbers) {
      if (number < 0 || number >= size())
        throw UsageError(fmt::format("there is no row {}: there are {}", number, size()));
      const std::int32_t* piece = tokens_->numbers.data() + number * length_;
      into_input = std::copy_n(piece, length_, into_input);
      into_target = std::copy_n(piece + 1, length_, into_target);
    }
    return {.inputs = {input}, .target = target};
  }

 private:
  std::shared_ptr<const Tokens> tokens_;
  std::int64_t length_;
};

DataSource resolve_text(const Options& options) {
  const std::filesystem::path path = options.at("file").existing_file();
  const std::int64_t length = options.integer("length", {.min = 1, .max = kMostSize});
  auto tokens = std::make_shared<const Tokens>(tokens_of(path, read_text(path)));
  const auto characters = static_cast<std::int64_t>(tokens->numbers.size());
  if (characters == 0) throw UsageError(fmt::format("{}: the file is empty", path.string()));
  if (characters <= length) {
    throw options.at("length").error(
        fmt::format("a row has {} characters, and the one after them; {} has {}", length, path.string(), characters));
  }
  const ValueSpec piece{.shape = {length}, .type = ValueType::int64};
  return {.description = {.inputs = {{"text", piece}},
                          .target = piece,
                          .classes = static_cast<std::int64_t>(tokens->characters.size()),
                          .class_names = tokens->characters},
          .open = [tokens, length] { return DataSplits{.train = std::make_shared<TextDataset>(tokens, length)}; },
          .has_test = false,
          .is_in_order = true,
          .read_inputs = [tokens,
                          length](const std::filesystem::path& file) { return read_pieces(file, *tokens, length); }};
}

}  // namespace

void add_text(DataSourceRegistry& registry) { registry.add({.name = "text", .resolve = resolve_text}); }

}  // namespace tutti::detail
