#include <tutti/base/safetensors.hpp>

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/checksum.hpp>

namespace tutti {
namespace {

using namespace std::string_literals;
using testing::content_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::overwrite;
using testing::ScratchFolder;
using testing::usage_error;
using Texts = std::map<std::string, std::string>;

std::string length_of(std::uint64_t header_bytes) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &header_bytes, 8);
  return text;
}

std::string file_of(std::string_view header, std::string_view data) {
  return length_of(header.size()) + std::string(header) + std::string(data);
}

ParameterSet small_net() {
  ParameterSet set;
  const std::vector<float> weight{1, 2};
  const std::vector<std::int64_t> steps{-3};
  set.add("w", {2, 1}, weight);
  set.add("steps", {}, steps);
  return set;
}

// Reads such a file, and gives what is wrong with it.
class ReadingSafetensors : public ::testing::Test {
 protected:
  std::string problem(std::string_view content, SafetensorsReadOptions options = {}) {
    const std::filesystem::path path = scratch_ / "net";
    overwrite(path, content);
    const std::string message = error_of([&] { read_safetensors(path, options); });
    const std::string expected = fmt::format("cannot read {}: ", path.string());
    if (message == "(no error)") return message;
    EXPECT_EQ(message.substr(0, expected.size()), expected);
    return message.substr(expected.size());
  }

  // Of one array "w" that is described so, in a file with so many bytes of data.
  std::string array_problem(std::string_view entry, std::size_t data_bytes = 8) {
    return problem(file_of(fmt::format(R"({{"w":{}}})", entry), std::string(data_bytes, '\0')));
  }

  const ScratchFolder scratch_;
};

TEST(Safetensors, AreWrittenToTheByte) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "net", small_net(), {.metadata = {{"epoch", "3"}, {"by", "\"tutti\"\n"}}});
  // Wider elements come first in the data, whatever the order of the header; its length is a multiple of 8.
  const std::string header =
      R"({"__metadata__":{"by":"\"tutti\"\n","epoch":"3"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},)"
      R"("steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string data =
      "\xfd\xff\xff\xff\xff\xff\xff\xff"
      "\x00\x00\x80\x3f"
      "\x00\x00\x00\x40"s;
  EXPECT_EQ(content_of(scratch / "net"), file_of(header + padding, data));
  EXPECT_THAT(scratch.entries(), ElementsAre("net"));
}

TEST(Safetensors, HoldNothingToo) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "net", {});
  EXPECT_EQ(content_of(scratch / "net"), file_of("{}      ", ""));
  const SafetensorsFile file = read_safetensors(scratch / "net");
  EXPECT_TRUE(file.parameters.empty());
  EXPECT_THAT(file.metadata, IsEmpty());
  EXPECT_FALSE(file.has_checksum);
}

TEST(Safetensors, BringBackEveryTypeAndShape) {
  const ScratchFolder scratch;
  ParameterSet set;
  unsigned char next = 0;
  for (const Shape& shape : {Shape{}, {1}, {3, 2}, {0}, {2, 0, 3}, {1, 1, 1, 1, 5}, {129}}) {
    for (const DataType type : kAllDataTypes) {
      const Array added = set.add(
          {.name = fmt::format("{} {} ä\"\\\n\t/", to_string(type), to_string(shape)), .shape = shape, .type = type});
      for (std::byte& byte : std::span(added.data(), added.bytes())) byte = std::byte(next++);
    }
  }
  const Texts metadata = {{"", ""}, {"ключ", "\"€\"\\ \u0001"}, {"key", std::string(10'000, 'x')}};
  for (const bool checksum : {false, true}) {
    write_safetensors(scratch / "net", set, {.metadata = metadata, .checksum = checksum});
    const SafetensorsFile file = read_safetensors(scratch / "net", {.require_checksum = checksum});
    EXPECT_EQ(set.layout_difference(file.parameters), "");
    EXPECT_EQ(file.parameters, set);
    EXPECT_EQ(file.metadata, metadata);
    EXPECT_EQ(file.has_checksum, checksum);
  }
}

TEST(Safetensors, AlignEveryElement) {
  const ScratchFolder scratch;
  ParameterSet set;
  for (const DataType type : kAllDataTypes) set.add({.name = std::string(to_string(type)), .shape = {3}, .type = type});
  write_safetensors(scratch / "net", set);
  const std::string text = content_of(scratch / "net");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  const std::string header = text.substr(8, header_bytes);
  for (const char* offsets : {"[0,24]", "[24,48]", "[48,60]", "[60,72]", "[72,78]", "[78,84]"})
    EXPECT_THAT(header, HasSubstr(offsets));
}

TEST(Safetensors, AreReplacedWholeOrNotAtAll) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "net", small_net());
  const std::string before = content_of(scratch / "net");
  EXPECT_EQ(error_of([&] { write_safetensors(scratch / "none/net", small_net()); }),
            fmt::format("cannot write {}: No such file or directory", (scratch / "none/net").string()));
  ParameterSet bad;
  bad.add({.name = "\xff"});
  EXPECT_EQ(usage_error([&] { write_safetensors(scratch / "net", bad); }),
            fmt::format("cannot write {}: \"\ufffd\" is not UTF-8", (scratch / "net").string()));
  ParameterSet reserved;
  reserved.add({.name = "__metadata__"});
  EXPECT_EQ(usage_error([&] { write_safetensors(scratch / "net", reserved); }),
            fmt::format("cannot write {}: no array can be named \"__metadata__\" there", (scratch / "net").string()));
  EXPECT_EQ(usage_error([&] {
              write_safetensors(scratch / "net", {}, {.metadata = {{"tutti.checksum", "0"}}});
            }),
            fmt::format("cannot write {}: the metadata \"tutti.checksum\" is for the checksum alone",
                        (scratch / "net").string()));
  EXPECT_EQ(content_of(scratch / "net"), before);
  EXPECT_THAT(scratch.entries(), ElementsAre("net"));
}

TEST_F(ReadingSafetensors, TakesWhatOthersWrite) {
  // Blanks, keys in another order, no padding, data in another order.
  const std::string header = R"({ "b" : {"shape": [1], "data_offsets": [1, 1], "dtype": "F32"}})";
  EXPECT_EQ(problem(file_of(header, "x")), R"("b" is float32 [1], which takes 4 bytes, and its data has 0)");
  overwrite(scratch_ / "net", file_of(R"({ "b" : {"shape": [ 1 ] , "data_offsets":[ 4, 8], "dtype": "I32"},
                                           "__metadata__": {}, "a\u00e9": {"dtype":"I32","shape":[1,1],"data_offsets":[0,4]} } )",
                                      "\1\0\0\0\2\0\0\0"s));
  const SafetensorsFile file = read_safetensors(scratch_ / "net");
  EXPECT_THAT(file.parameters.names(), ElementsAre("b", "aé"));
  EXPECT_THAT(file.parameters.at("b").values<std::int32_t>(), ElementsAre(2));
  EXPECT_THAT(file.parameters.at("aé").values<std::int32_t>(), ElementsAre(1));
}

TEST_F(ReadingSafetensors, NamesAFileThatCannotBeOpened) {
  const auto problem_of = [&](const std::filesystem::path& path) { return error_of([&] { read_safetensors(path); }); };
  EXPECT_EQ(problem_of("none.safetensors"), "cannot read none.safetensors: No such file or directory");
  EXPECT_EQ(problem_of(scratch_.path()), fmt::format("cannot read {}: Is a directory", scratch_.path().string()));
  ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0666), 0);
  EXPECT_EQ(problem_of(scratch_ / "pipe"),
            fmt::format("cannot read {}: it is not a regular file", (scratch_ / "pipe").string()));
}

TEST_F(ReadingSafetensors, RefusesLengthsThatCannotBe) {
  EXPECT_EQ(problem(""), "it has 0 bytes, and a safetensors file has at least 8");
  EXPECT_EQ(problem("1234567"), "it has 7 bytes, and a safetensors file has at least 8");
  EXPECT_EQ(problem(length_of(0)), "its header does not begin with '{': it is not a safetensors file");
  EXPECT_EQ(problem(length_of(3) + "{}"), "its header has 3 bytes, and 2 follow: the file is cut short");
  EXPECT_EQ(problem(length_of(100'000'000) + "{}"),
            "its header has 100000000 bytes, and 2 follow: the file is cut short");
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    EXPECT_EQ(problem(length_of(length) + "{}"),
              fmt::format("its header would have {} bytes, and 100000000 are the most: it is not a safetensors file",
                          length));
  }
}

TEST_F(ReadingSafetensors, RefusesAHeaderThatIsNoJson) {
  const auto of = [&](std::string_view header) { return problem(file_of(header, "")); };
  EXPECT_EQ(of("[]"), "its header does not begin with '{': it is not a safetensors file");
  EXPECT_EQ(of("\xef\xbb\xbf{}"), "its header does not begin with '{': it is not a safetensors file");
  EXPECT_EQ(of("{]"), "its header is not JSON, from byte 1 of it on");
  EXPECT_EQ(of("{} x"), "its header is not JSON, from byte 3 of it on");
  EXPECT_EQ(of("{}\0 "s), "its header is not JSON, from byte 2 of it on");
  EXPECT_EQ(of("{/**/}"), "its header is not JSON, from byte 1 of it on");
  EXPECT_THAT(of("{\"\xff\":{}}"), HasSubstr("its header is not JSON"));
  EXPECT_THAT(of("{\"a\":{\"shape\":[1e999]}}"), HasSubstr("its header is not JSON"));
  EXPECT_THAT(of("{"), HasSubstr("its header is not JSON"));
  EXPECT_THAT(of(std::string(100'000, '{')), HasSubstr("its header is not JSON"));
  EXPECT_EQ(of(R"({"a":)" + std::string(100'000, '[')), R"(its header has an array where an object for "a" belongs)");
}

TEST_F(ReadingSafetensors, RefusesAHeaderOfAnotherForm) {
  const auto of = [&](std::string_view header) { return problem(file_of(header, "")); };
  EXPECT_EQ(of(R"({"a":3})"), R"(its header has 3 where an object for "a" belongs)");
  EXPECT_EQ(of(R"({"a":null})"), R"(its header has null where an object for "a" belongs)");
  EXPECT_EQ(of(R"({"__metadata__":[]})"), R"(its header has an array where an object for "__metadata__" belongs)");
  EXPECT_EQ(of(R"({"__metadata__":{"a":1}})"), R"(its header has 1 where a string for "a" of "__metadata__" belongs)");
  EXPECT_EQ(of(R"({"__metadata__":{"a":{}}})"),
            R"(its header has an object where a string for "a" of "__metadata__" belongs)");
  EXPECT_EQ(of(R"({"__metadata__":{"a":"","a":""}})"), R"("a" is given twice in __metadata__)");
  EXPECT_EQ(of(R"({"__metadata__":{},"__metadata__":{}})"), R"("__metadata__" is given twice in the header)");
  EXPECT_EQ(array_problem("{}"), R"("w" has no "dtype")");
  EXPECT_EQ(array_problem(R"({"dtype":"F32","shape":[2]})"), R"("w" has no "data_offsets")");
  EXPECT_EQ(array_problem(R"({"dtype":"F32","data_offsets":[0,8]})"), R"("w" has no "shape")");
  EXPECT_EQ(array_problem(R"({"dtype":"F32","dtype":"F32"})"), R"("dtype" is given twice in w)");
  EXPECT_EQ(array_problem(R"({"type":"F32"})"), R"("w" has "type", which safetensors does not have)");
  EXPECT_EQ(array_problem(R"({"dtype":1})"), R"(its header has 1 where a string for "dtype" of "w" belongs)");
  EXPECT_EQ(array_problem(R"({"dtype":[]})"), R"(its header has an array where a string for "dtype" of "w" belongs)");
  EXPECT_EQ(array_problem(R"({"shape":"2"})"), R"(its header has a string where an array for "shape" of "w" belongs)");
  EXPECT_EQ(array_problem(R"({"shape":[[2]]})"),
            R"(its header has an array where a whole number from 0 on in the "shape" of "w" belongs)");
  for (const char* number : {"-1", "-0", "2.0", "1e3", "18446744073709551616", "true"}) {
    EXPECT_THAT(array_problem(fmt::format(R"({{"shape":[{}]}})", number)),
                HasSubstr(R"( where a whole number from 0 on in the "shape" of "w" belongs)"));
    EXPECT_THAT(array_problem(fmt::format(R"({{"data_offsets":[0,{}]}})", number)),
                HasSubstr(R"( where one of two whole numbers from 0 on in the "data_offsets" of "w" belongs)"));
  }
  EXPECT_EQ(array_problem(R"({"data_offsets":[0]})"), R"(the "data_offsets" of "w" are not two)");
  EXPECT_EQ(array_problem(R"({"data_offsets":[0,8,9]})"),
            R"(its header has 9 where one of two whole numbers from 0 on in the "data_offsets" of "w" belongs)");
}

TEST_F(ReadingSafetensors, RefusesTypesItDoesNotHave) {
  const auto of = [&](std::string_view type) { return array_problem(fmt::format(R"({{"dtype":"{}"}})", type)); };
  for (const char* type : {"U8", "BOOL", "I8", "I16", "U16", "U32", "U64", "F8_E4M3", "F8_E5M2"}) {
    EXPECT_EQ(of(type), fmt::format(R"("w" is of type "{}", which is not supported; supported are )"
                                    "F32, F64, F16, BF16, I32, I64",
                                    type));
  }
  for (const char* type : {"", "f32", "F33", "F320"}) {
    EXPECT_EQ(of(type), fmt::format(R"("w" is of type "{}", which safetensors does not have; supported are )"
                                    "F32, F64, F16, BF16, I32, I64",
                                    type));
  }
}

TEST_F(ReadingSafetensors, RefusesSizesThatDoNotAgree) {
  const auto of = [&](std::string_view shape, std::string_view offsets, std::size_t data_bytes = 8) {
    return array_problem(fmt::format(R"({{"dtype":"F32","shape":{},"data_offsets":{}}})", shape, offsets), data_bytes);
  };
  EXPECT_EQ(of("[2]", "[0,8]"), "(no error)");
  EXPECT_EQ(of("[3]", "[0,8]"), R"("w" is float32 [3], which takes 12 bytes, and its data has 8)");
  EXPECT_EQ(of("[2]", "[8,0]"), R"(the data of "w" ends at byte 0, before it begins at byte 8)");
  EXPECT_EQ(of("[2]", "[0,8]", 7), "its header describes 8 bytes of data, and 7 follow: the file is cut short");
  EXPECT_EQ(of("[2]", "[0,8]", 9), "its header describes 8 bytes of data, and 9 follow");
  EXPECT_EQ(of("[1]", "[4,8]"), "bytes 0 to 3 of its data belong to no array");
  EXPECT_EQ(of("[2]", "[18446744073709551608,18446744073709551615]"),
            R"("w" is float32 [2], which takes 8 bytes, and its data has 7)");
  EXPECT_EQ(of("[1]", "[18446744073709551611,18446744073709551615]"),
            "its header describes 18446744073709551615 bytes of data, and 8 follow: the file is cut short");
  EXPECT_EQ(of("[4294967296,4294967296]", "[0,8]"), R"("w": no array is float32 [4294967296, 4294967296])");
  EXPECT_EQ(of("[18446744073709551615]", "[0,8]"), R"("w": no array is float32 [9223372036854775807])");
  std::string ones;
  for (int i = 0; i < 63; ++i) ones += ",1";
  EXPECT_EQ(of("[2" + ones + "]", "[0,8]"), "(no error)");
  EXPECT_EQ(of("[2,1" + ones + "]", "[0,8]"), R"("w" has more than 64 dimensions)");
  EXPECT_EQ(of("[274877906944]", "[0,1099511627776]"),
            "its header describes 1099511627776 bytes of data, and 8 follow: the file is cut short");
}

TEST_F(ReadingSafetensors, RefusesHolesOverlapsAndEqualNames) {
  const auto of = [&](std::string_view first, std::string_view a, std::string_view second, std::string_view b) {
    constexpr std::string_view kArray = R"("{}":{{"dtype":"F32","shape":[1],"data_offsets":{}}})";
    const std::string header =
        "{" + fmt::format(fmt::runtime(kArray), first, a) + "," + fmt::format(fmt::runtime(kArray), second, b) + "}";
    return problem(file_of(header, std::string(12, '\0')));
  };
  EXPECT_EQ(of("a", "[0,4]", "b", "[8,12]"), "bytes 4 to 7 of its data belong to no array");
  EXPECT_EQ(of("a", "[8,12]", "b", "[8,12]"), "bytes 0 to 7 of its data belong to no array");
  EXPECT_EQ(of("a", "[0,4]", "a", "[4,8]"), R"("a" is given twice in the header)");
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  EXPECT_EQ(problem(file_of(header, std::string(12, '\0'))), R"(the data of "b" overlaps that of another array)");
  EXPECT_EQ(of("a", "[0,4]", "b", "[0,4]"), "its header describes 4 bytes of data, and 12 follow");
}

TEST_F(ReadingSafetensors, NoticesEveryFlippedBit) {
  write_safetensors(scratch_ / "good", small_net(), {.metadata = {{"epoch", "3"}}, .checksum = true});
  const std::string good = content_of(scratch_ / "good");
  EXPECT_EQ(problem(good, {.require_checksum = true}), "(no error)");
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string damaged = good;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(problem(damaged, {.require_checksum = true}), "(no error)") << "bit " << bit;
  }
  std::string damaged = good;
  damaged.back() ^= 1;
  EXPECT_THAT(problem(damaged), HasSubstr("it is damaged: its checksum should be "));
}

TEST_F(ReadingSafetensors, ChecksumIsThatOfTheFileWithItsDigitsZeros) {
  write_safetensors(scratch_ / "good", small_net(), {.checksum = true});
  std::string content = content_of(scratch_ / "good");
  const std::string key = R"("tutti.checksum":")";
  const std::size_t place = content.find(key) + key.size();
  const std::string digits = content.substr(place, 16);
  content.replace(place, 16, 16, '0');
  Checksum sum;
  sum.add(content);
  EXPECT_EQ(to_hex(sum.value()), digits);
}

TEST_F(ReadingSafetensors, TakesAChecksumHoweverItsHeaderIsLaidOut) {
  const std::string header =
      R"({"__metadata__" : {"a\"tutti.checksum":"0000000000000000", "b": "\"tutti.checksum\":\"0000000000000000\"", "c":
      "tutti.checksum", "tutti.checksum" :  "0000000000000000"}})";
  std::string content = file_of(header, "");
  Checksum sum;
  sum.add(content);
  content.replace(content.rfind("0000000000000000"), 16, to_hex(sum.value()));
  EXPECT_EQ(problem(content, {.require_checksum = true}), "(no error)");
  EXPECT_EQ(read_safetensors(scratch_ / "net").metadata.size(), 3u);
}

TEST_F(ReadingSafetensors, RefusesAChecksumThatIsNone) {
  const auto of = [&](std::string_view digits) {
    return problem(file_of(fmt::format(R"({{"__metadata__":{{"tutti.checksum":"{}"}}}})", digits), ""));
  };
  for (const char* digits :
       {"", "0", "00000000000000000", "000000000000000g", "000000000000000A", "\\u0030000000000000000"})
    EXPECT_EQ(of(digits), R"(its "tutti.checksum" is not of 16 digits from 0 to 9 and a to f)") << digits;
  EXPECT_THAT(of("0000000000000000"), HasSubstr("it is damaged"));
  EXPECT_EQ(problem(file_of("{}", ""), {.require_checksum = true}),
            R"(it has no "tutti.checksum" in its metadata, which is required of it)");
}

}  // namespace
}  // namespace tutti
