#include "columns.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::detail {
namespace {

constexpr std::uint32_t kReplacement = 0xfffd;

struct Character {
  std::uint32_t code = kReplacement;
  std::size_t bytes = 1;
  bool valid = false;
};

// The first character of text that is not empty.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<std::uint8_t>(text[index]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  // Longer than need be, half of a pair, or beyond the last.
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return {};
  return {code, bytes, true};
}

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

template <std::size_t size>
bool any_holds(const std::array<Range, size>& ranges, std::uint32_t code) {
  return std::ranges::any_of(ranges, [&](Range range) { return code >= range.first && code <= range.last; });
}

// Controls, and characters that turn the direction of what follows or begin a new line.
bool is_control(std::uint32_t code) {
  constexpr std::array<Range, 5> kControls{
      {{0, 0x1f}, {0x7f, 0x9f}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}}};
  return any_holds(kControls, code);
}

int columns_of_code(std::uint32_t code) {
  // Marks that stand over others.
  constexpr std::array<Range, 7> kNone{{{0x300, 0x36f},
                                        {0x1ab0, 0x1aff},
                                        {0x1dc0, 0x1dff},
                                        {0x200b, 0x200d},
                                        {0x20d0, 0x20ff},
                                        {0xfe00, 0xfe0f},
                                        {0xfe20, 0xfe2f}}};
  // East Asian letters, and pictures.
  constexpr std::array<Range, 14> kTwo{{{0x1100, 0x115f},
                                        {0x231a, 0x231b},
                                        {0x23e9, 0x23f3},
                                        {0x2600, 0x27bf},
                                        {0x2b1b, 0x2b55},
                                        {0x2e80, 0xa4cf},
                                        {0xa960, 0xa97f},
                                        {0xac00, 0xd7a3},
                                        {0xf900, 0xfaff},
                                        {0xfe30, 0xfe6f},
                                        {0xff00, 0xff60},
                                        {0xffe0, 0xffe6},
                                        {0x16fe0, 0x1fbff},
                                        {0x20000, 0x3ffff}}};
  if (code < 0x300) return 1;
  if (any_holds(kNone, code)) return 0;
  return any_holds(kTwo, code) ? 2 : 1;
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_of(text.substr(at));
    if (!character.valid)
      shown += "\xef\xbf\xbd";
    else if (is_control(character.code))
      shown += ' ';
    else
      shown += text.substr(at, character.bytes);
    at += character.bytes;
  }
  return shown;
}

int columns_of(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_of(text.substr(at));
    columns += columns_of_code(character.code);
    at += character.bytes;
  }
  return columns;
}

std::string cut_to_columns(std::string_view text, int columns) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = first_of(text.substr(at));
    columns -= columns_of_code(character.code);
    if (columns < 0) break;
    at += character.bytes;
  }
  return std::string(text.substr(0, at));
}

}  // namespace tutti::detail
