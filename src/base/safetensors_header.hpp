// The header of a safetensors file, as text and as what it says; who reads or writes the data goes by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/parameter_set.hpp>

namespace tutti::detail {

inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
inline constexpr std::size_t kHeaderAlignment = 8;
inline constexpr std::string_view kChecksumKey = "tutti.checksum";
inline constexpr std::string_view kUnsetChecksum = "0000000000000000";

struct SafetensorsHeader {
  struct Entry {
    ParameterLayout layout;
    std::uint64_t begin = 0;  // of its bytes, from the first byte of the data on
    std::uint64_t end = 0;
  };

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  std::vector<std::size_t> order_of_data() const;  // indices of entries, as their data comes in the file
};

// Where arrays go.
SafetensorsHeader plan_safetensors(std::vector<ParameterLayout> arrays, std::map<std::string, std::string> metadata);

// Padded with spaces to a multiple of kHeaderAlignment. A UsageError where something cannot be written.
std::string to_text(const SafetensorsHeader& header);

// Throws an Error where the text is no such header, or where its arrays do not cover all `data_bytes` exactly.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes);

// Where the digits of the checksum stand in the text of a header, whose metadata have it.
std::optional<std::size_t> find_checksum(std::string_view text, std::string_view digits);

}  // namespace tutti::detail
