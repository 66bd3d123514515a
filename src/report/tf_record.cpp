#include "tf_record.hpp"

#include <array>
#include <bit>
#include <cstdint>

namespace tutti::detail {
namespace {

// CRC-32C: Castagnoli's polynomial, its bits reversed.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1u) != 0 ? 0x82f63b78u : 0u);
    table[byte] = rest;
  }
  return table;
}

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_table();
  std::uint32_t rest = 0xffffffffu;
  for (const char byte : bytes) rest = (rest >> 8) ^ kTable[(rest ^ static_cast<std::uint8_t>(byte)) & 0xffu];
  return ~rest;
}

// A checksum of data that holds checksums says little, so the format turns and shifts those that it stores.
std::uint32_t masked(std::uint32_t checksum) { return std::rotr(checksum, 15) + 0xa282ead8u; }

}  // namespace

std::string tf_record(std::string_view bytes) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(bytes.size()));
  append_little_endian(record, masked(crc32c(record)));
  record += bytes;
  append_little_endian(record, masked(crc32c(bytes)));
  return record;
}

}  // namespace tutti::detail
