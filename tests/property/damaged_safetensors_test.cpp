// Files that are damaged in thousands of ways: each is read, or refused with an Error that names it, and nothing else
// happens. One with a checksum is refused always.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <support/sample.hpp>
#include <support/scratch_folder.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/base/safetensors.hpp>

namespace tutti {
namespace {

using testing::content_of;
using testing::overwrite;
using testing::ScratchFolder;

constexpr int kOriginals = 40;
constexpr int kDamages = 300 / testing::kEveryWhereSanitized;

ParameterSet random_set(RandomStream& draws) {
  ParameterSet set;
  const std::uint64_t arrays = draws.below(6);
  for (std::uint64_t i = 0; i < arrays; ++i) {
    Shape shape;
    for (std::uint64_t dimensions = draws.below(4); dimensions > 0; --dimensions)
      shape.push_back(static_cast<std::int64_t>(draws.below(5)));
    const Array added = set.add({.name = fmt::format("layer{}.weight", i),
                                 .shape = shape,
                                 .type = kAllDataTypes[draws.below(std::size(kAllDataTypes))]});
    for (std::byte& byte : std::span(added.data(), added.bytes())) byte = std::byte(draws.below(256));
  }
  return set;
}

// A file in its three parts, so that damage can be done to one and the length of the header be right again.
class Damager {
 public:
  Damager(const std::string& file, RandomStream& draws) : draws_(draws) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    header_ = file.substr(8, length);
    data_ = file.substr(8 + length);
  }

  std::string damaged() {
    for (std::uint64_t times = 1 + draws_.below(3); times > 0; --times) damage_header();
    std::string file = whole();
    for (std::uint64_t times = draws_.below(3); times > 0; --times) damage_file(file);
    return file;
  }

 private:
  std::string whole() const {
    const std::uint64_t length = header_.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    return text + header_ + data_;
  }

  std::size_t somewhere(const std::string& text) { return static_cast<std::size_t>(draws_.below(text.size() + 1)); }

  std::string_view one_of(std::initializer_list<std::string_view> choices) {
    return choices.begin()[draws_.below(choices.size())];
  }

  // Where one of these characters stands, if any does, chosen by chance.
  std::optional<std::size_t> place_of(std::string_view characters) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < header_.size(); ++i) {
      if (characters.find(header_[i]) != characters.npos) places.push_back(i);
    }
    if (places.empty()) return std::nullopt;
    return places[draws_.below(places.size())];
  }

  void damage_header() {
    switch (draws_.below(7)) {
      case 0: return;
      case 1:  // another digit
        if (const auto place = place_of("0123456789")) header_[*place] = static_cast<char>('0' + draws_.below(10));
        return;
      case 2:  // another number
        if (const auto place = place_of("0123456789"))
          header_.replace(*place, 1,
                          one_of({"-1", "4294967296", "18446744073709551615", "18446744073709551616",
                                  "9223372036854775808", "1e5", "0.5", "", "00", "null", "\"4\"", "[4]"}));
        return;
      case 3:  // another type
        if (const std::size_t place = header_.find("\"dtype\":\"", somewhere(header_)); place != header_.npos)
          header_.replace(place + 9, header_.find('"', place + 9) - place - 9,
                          one_of({"F32", "F64", "F16", "BF16", "I32", "I64", "BOOL", "U8", "I8", "", "F"}));
        return;
      case 4:  // a piece once more
        if (const auto begin = place_of("{[,\"")) {
          const std::size_t size = header_.find_first_of("}]", *begin) - *begin;
          header_.insert(*begin, header_.substr(*begin, draws_.below(2) == 0 ? size + 1 : draws_.below(20)));
        }
        return;
      case 5: header_.erase(somewhere(header_), draws_.below(2) == 0 ? 1 : draws_.below(30)); return;
      default:
        header_.insert(somewhere(header_), one_of({" ", "{", "}", "[", "]", ",", ":", "\"", "\\", "{}", "//", "\0",
                                                   "\xff", "\"shape\":[],", "\"__metadata__\":{},", "\"x\":{},"}));
    }
  }

  void damage_file(std::string& file) {
    if (file.empty()) return;
    const std::size_t place = draws_.below(file.size());
    switch (draws_.below(6)) {
      case 0: file.resize(place); return;
      case 1: file[place] = static_cast<char>(file[place] ^ (1 << draws_.below(8))); return;
      case 2: file[place] = static_cast<char>(draws_()); return;
      case 3: file.append(static_cast<std::size_t>(draws_.below(20)), static_cast<char>(draws_())); return;
      case 4: std::swap(file[place], file[draws_.below(file.size())]); return;
      default:  // the length of the header
        file[draws_.below(std::min<std::size_t>(file.size(), 8))] = static_cast<char>(draws_());
    }
  }

  RandomStream& draws_;
  std::string header_;
  std::string data_;
};

// Whether the file was read. Any exception but an Error that names it fails the test.
bool is_read(const std::filesystem::path& path, bool with_checksum) {
  try {
    const SafetensorsFile file = read_safetensors(path, {.require_checksum = with_checksum});
    EXPECT_LE(file.parameters.bytes(), std::filesystem::file_size(path));
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with(fmt::format("cannot read {}: ", path.string())))
        << error.what();
    EXPECT_LT(std::strlen(error.what()), 400u) << error.what();
    return false;
  }
}

TEST(DamagedSafetensors, AreReadOrRefusedByName) {
  const ScratchFolder scratch;
  int read = 0;
  for (std::uint64_t original = 0; original < kOriginals; ++original) {
    const bool with_checksum = original % 2 == 0;
    RandomStream draws({original});
    const std::filesystem::path path = scratch / fmt::format("{}.safetensors", original);
    write_safetensors(path, random_set(draws), {.metadata = {{"epoch", "3"}}, .checksum = with_checksum});
    const std::string content = content_of(path);
    for (int i = 0; i < kDamages; ++i) {
      const std::string damaged = Damager(content, draws).damaged();
      overwrite(path, damaged);
      const bool was_read = is_read(path, with_checksum);
      read += was_read;
      EXPECT_TRUE(!with_checksum || was_read == (damaged == content));
      ASSERT_FALSE(::testing::Test::HasFailure()) << "original " << original << ", damage " << i << "\n" << damaged;
    }
  }
  // Some damage is to data or harmless, so that both ways are gone.
  EXPECT_GT(read, kOriginals * kDamages / 100);
  EXPECT_LT(read, kOriginals * kDamages / 2);
}

TEST(DamagedSafetensors, OfNothingButChanceAreRefused) {
  const ScratchFolder scratch;
  const std::filesystem::path path = scratch / "net.safetensors";
  RandomStream draws({2});
  for (int i = 0; i < kDamages; ++i) {
    std::string content(draws.below(200), '\0');
    for (char& byte : content) byte = static_cast<char>(draws());
    // So that more than the length is looked at.
    if (content.size() > 8)
      content.replace(0, 8, {static_cast<char>(draws.below(content.size() - 7)), 0, 0, 0, 0, 0, 0, 0});
    if (content.size() > 8 && draws.below(2) == 0) content[8] = '{';
    overwrite(path, content);
    ASSERT_FALSE(is_read(path, false)) << "content " << i;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "content " << i;
  }
}

}  // namespace
}  // namespace tutti
