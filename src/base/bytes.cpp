#include <tutti/base/bytes.hpp>

#include <array>
#include <charconv>
#include <limits>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

struct Unit {
  std::string_view name;
  std::string_view letter;
  int shift;
};

constexpr std::array<Unit, 5> kUnits{
    {{"TiB", "T", 40}, {"GiB", "G", 30}, {"MiB", "M", 20}, {"KiB", "K", 10}, {"B", "", 0}}};

}  // namespace

Bytes parse_bytes(std::string_view text) {
  std::uint64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, count);
  if (problem == std::errc::result_out_of_range)
    throw UsageError(fmt::format("'{}' is more bytes than can be counted", text));
  std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  if (problem == std::errc{}) {
    for (const Unit& unit : kUnits) {
      if (suffix != unit.name && suffix != unit.letter) continue;
      if (count > std::numeric_limits<std::uint64_t>::max() >> unit.shift)
        throw UsageError(fmt::format("'{}' is more bytes than can be counted", text));
      return Bytes{count << unit.shift};
    }
  }
  throw UsageError(fmt::format("'{}' is no number of bytes; write for example 1500, 1KiB, 4MiB or 2GiB", text));
}

std::string to_string(Bytes bytes) {
  for (const Unit& unit : kUnits) {
    const std::uint64_t one = std::uint64_t{1} << unit.shift;
    if (bytes.value >= one && bytes.value % one == 0) return fmt::format("{} {}", bytes.value >> unit.shift, unit.name);
  }
  return fmt::format("{} B", bytes.value);
}

}  // namespace tutti
