// A text, character by character: {"source": "text", "file": "play.txt", "length": 64}. A row is a piece of so many
// characters, and its target the same piece one character on: after each, the one that comes next. "file" may be a
// list.
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
  std::vector<std::vector<std::int32_t>> numbers;  // of each text, for each of its characters
  std::vector<std::string> characters;  // by their numbers: those that the texts have, in the order of Unicode
};

Tokens tokens_of(const std::vector<std::filesystem::path>& paths) {
  Tokens tokens;
  std::unordered_map<std::string, std::int32_t> first_seen;
  std::vector<std::string> seen;
  for (const std::filesystem::path& path : paths) {
    const std::string whole = read_text(path);
    const std::string_view text = whole;
    std::vector<std::int32_t>& numbers = tokens.numbers.emplace_back();
    numbers.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const std::optional<std::string_view> character = first_character(text.substr(at));
      if (!character) {
        const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
        throw UsageError(fmt::format("{}:{}: expected UTF-8, found the byte 0x{:02x}", path.string(), line,
                                     static_cast<unsigned char>(text[at])));
      }
      const auto [found, is_new] =
          first_seen.try_emplace(std::string(*character), static_cast<std::int32_t>(seen.size()));
      if (is_new) seen.emplace_back(*character);
      numbers.push_back(found->second);
      at += character->size();
    }
  }
  // The order of Unicode is that of the bytes of UTF-8.
  tokens.characters = seen;
  std::ranges::sort(tokens.characters);
  std::vector<std::int32_t> number_of_seen(seen.size());
  for (std::size_t i = 0; i < seen.size(); ++i)
    number_of_seen[static_cast<std::size_t>(first_seen.at(tokens.characters[i]))] = static_cast<std::int32_t>(i);
  for (std::vector<std::int32_t>& text : tokens.numbers) {
    for (std::int32_t& number : text) number = number_of_seen[static_cast<std::size_t>(number)];
  }
  return tokens;
}

// A text of the same characters, in pieces; what is left at the end fills none.
std::shared_ptr<const Dataset> read_pieces(const std::filesystem::path& path, const Tokens& known,
                                           std::int64_t length) {
  const Tokens its = tokens_of({path});
  const std::vector<std::int32_t>& text = its.numbers.front();
  std::vector<std::int64_t> numbers;
  for (const std::string& character : its.characters) {
    const auto found = std::ranges::lower_bound(known.characters, character);
    if (found == known.characters.end() || *found != character)
      throw UsageError(
          fmt::format("{}: the character '{}' is not in the text to train with", path.string(), character));
    numbers.push_back(found - known.characters.begin());
  }
  const std::int64_t rows = std::ssize(text) / length;
  if (rows == 0)
    throw UsageError(fmt::format("{}: expected at least {} characters, found {}", path.string(), length, text.size()));
  torch::Tensor pieces = torch::empty({rows, length}, torch::kInt64);
  for (std::int64_t i = 0; i < rows * length; ++i)
    pieces.data_ptr<std::int64_t>()[i] = numbers[static_cast<std::size_t>(text[static_cast<std::size_t>(i)])];
  return rows_without_target(pieces);
}

// Pieces that follow one another, and do not overlap.
class TextDataset : public Dataset {
 public:
  // Of one of the texts.
  TextDataset(std::shared_ptr<const Tokens> tokens, std::size_t text, std::int64_t length)
      : tokens_(std::move(tokens)), text_(tokens_->numbers[text]), length_(length) {}

  // The last character is only a target.
  std::int64_t size() const override { return (std::ssize(text_) - 1) / length_; }

  DataRows rows(std::span<const std::int64_t> numbers) const override {
    const auto count = static_cast<std::int64_t>(numbers.size());
    const torch::Tensor input = torch::empty({count, length_}, torch::kInt64);
    const torch::Tensor target = torch::empty({count, length_}, torch::kInt64);
    auto* into_input = input.data_ptr<std::int64_t>();
    auto* into_target = target.data_ptr<std::int64_t>();
    for (const std::int64_t number : numbers) {
      if (number < 0 || number >= size())
        throw UsageError(fmt::format("there is no row {}: there are {}", number, size()));
      const std::int32_t* piece = text_.data() + number * length_;
      into_input = std::copy_n(piece, length_, into_input);
      into_target = std::copy_n(piece + 1, length_, into_target);
    }
    return {.inputs = {input}, .target = target};
  }

 private:
  std::shared_ptr<const Tokens> tokens_;
  std::span<const std::int32_t> text_;
  std::int64_t length_;
};

std::shared_ptr<const Dataset> text_rows(const std::shared_ptr<const Tokens>& tokens, std::int64_t length) {
  std::vector<std::shared_ptr<const Dataset>> parts;
  for (std::size_t text = 0; text < tokens->numbers.size(); ++text)
    parts.push_back(std::make_shared<TextDataset>(tokens, text, length));
  return rows_of_files(std::move(parts));
}

DataSource resolve_text(const Options& options) {
  const std::vector<std::filesystem::path> paths = options.at("file").existing_files();
  const std::int64_t length = options.integer("length", {.min = 1, .max = kMostSize});
  auto tokens = std::make_shared<const Tokens>(tokens_of(paths));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::int64_t characters = std::ssize(tokens->numbers[i]);
    if (characters == 0) throw UsageError(fmt::format("{}: the file is empty", paths[i].string()));
    if (characters <= length) {
      throw options.at("length").error(fmt::format("a row has {} characters, and the one after them; {} has {}", length,
                                                   paths[i].string(), characters));
    }
  }
  const ValueSpec piece{.shape = {length}, .type = ValueType::int64};
  return {.description = {.inputs = {{"text", piece}},
                          .target = piece,
                          .classes = static_cast<std::int64_t>(tokens->characters.size()),
                          .class_names = tokens->characters},
          .open = [tokens, length] { return DataSplits{.train = text_rows(tokens, length)}; },
          .has_test = false,
          .files = paths,
          .is_in_order = true,
          .read_inputs = [tokens,
                          length](const std::filesystem::path& file) { return read_pieces(file, *tokens, length); }};
}

}  // namespace

void add_text(DataSourceRegistry& registry) { registry.add({.name = "text", .resolve = resolve_text}); }

}  // namespace tutti::detail
