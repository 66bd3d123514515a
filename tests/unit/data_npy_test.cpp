// Files of arrays: .npy read and written, .npz written. What numpy makes of them is told by npz_test.sh.
#include <tutti/data/npy.hpp>
#include <tutti/data/npz.hpp>

#include <cstring>
#include <sstream>

#include <gtest/gtest.h>

#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::string npy(std::string_view dictionary, std::string_view values, char version = 1) {
  std::string text = "\x93NUMPY";
  text += {version, '\0', static_cast<char>(dictionary.size()), '\0'};
  if (version > 1) text += std::string(2, '\0');
  return text + std::string(dictionary) + std::string(values);
}

TEST(Npy, IsReadAsItWasWritten) {
  const testing::ScratchFolder folder;
  const std::vector<std::byte> values(840, std::byte{7});
  for (const NpyType type :
       {NpyType::float32, NpyType::float64, NpyType::int32, NpyType::int64, NpyType::uint8, NpyType::boolean}) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{5}, Shape{3, 5}, Shape{5, 0, 2}, Shape{2, 3, 5, 1}}) {
      const auto count = static_cast<std::size_t>(element_count(shape).value());
      const NpyView view{.type = type, .shape = shape, .bytes = std::span(values).first(count * size_of(type))};
      std::ostringstream stream;
      write_npy(stream, view);
      EXPECT_EQ((stream.str().size() - view.bytes.size()) % 64, 0u);
      const NpyArray read = read_npy(folder.write("a.npy", stream.str()));
      EXPECT_EQ(read.type, type);
      EXPECT_EQ(read.shape, shape);
      EXPECT_TRUE(std::ranges::equal(read.bytes, view.bytes)) << to_string(type) << to_string(shape);
      EXPECT_EQ(read_npy_header(folder.path() / "a.npy").shape, shape);
    }
  }
}

TEST(Npy, HasTheHeaderThatNumpyWrites) {
  const std::vector<float> values(12);
  const std::string header = npy_header({.type = NpyType::float32, .shape = {3, 4}, .bytes = bytes_of(values)});
  EXPECT_EQ(header.size(), 128u);
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(header.substr(10, 60), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } ");
  EXPECT_EQ(header.back(), '\n');
  EXPECT_NE(npy_header({.shape = {12}, .bytes = bytes_of(values)}).find("'shape': (12,), }"), std::string::npos);
  EXPECT_EQ(testing::usage_error([&] { (void)npy_header({.shape = {3}, .bytes = bytes_of(values)}); }),
            "48 bytes are no array of the shape [3] of float32");
}

TEST(Npy, OfFortranIsTurnedRound) {
  const testing::ScratchFolder folder;
  const NpyArray flat = read_npy(folder.write(
      "a.npy", npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3)}", "\x01\x02\x03\x04\x05\x06")));
  std::vector<int> values;
  for (const std::byte byte : flat.bytes) values.push_back(std::to_integer<int>(byte));
  EXPECT_EQ(values, (std::vector<int>{1, 3, 5, 2, 4, 6}));
  // Of three dimensions, every index to its place.
  std::string bytes;
  for (char k = 0; k < 4; ++k)
    for (char j = 0; j < 3; ++j)
      for (char i = 0; i < 2; ++i) bytes += static_cast<char>(i * 12 + j * 4 + k);
  const NpyArray cube =
      read_npy(folder.write("b.npy", npy("{'shape': (2, 3, 4), 'fortran_order': True, 'descr': '|u1', }\n", bytes, 2)));
  for (std::size_t i = 0; i < cube.bytes.size(); ++i) EXPECT_EQ(std::to_integer<std::size_t>(cube.bytes[i]), i);
}

TEST(Npy, NamesTheFileOfWhatIsWrong) {
  const testing::ScratchFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const std::filesystem::path path = folder.write("a.npy", bytes);
    std::string message = testing::usage_error([&] { (void)read_npy(path); });
    EXPECT_TRUE(message.starts_with(path.string() + ": ")) << message;
    return message.substr(std::min(message.size(), path.string().size() + 2));
  };
  const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  const std::string whole = npy(dictionary, "12345678");
  EXPECT_EQ(refused(""), "this is no .npy file");
  EXPECT_EQ(refused("PK\3\4 and so on"), "this is no .npy file");
  for (std::size_t size = 8; size < whole.size() - 8; ++size)
    EXPECT_EQ(refused(whole.substr(0, size)), "the file ends early") << size;
  EXPECT_EQ(refused(whole.substr(0, whole.size() - 1)), "expected 8 bytes for [2] of float32, found 7");
  EXPECT_EQ(refused(whole + "x"), "expected 8 bytes for [2] of float32, found 9");
  EXPECT_EQ(refused(npy(dictionary, "12345678", 9)), "expected a file of version 1 to 3, found 9");
  for (const char* wrong : {"", "{", "{}", "{'descr': '<f4', 'fortran_order': False}", "{'descr': 4}", "nothing",
                            "{'descr': '<f4', 'fortran_order': maybe, 'shape': (2,)}",
                            "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
                            "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
                            "{'descr': [('a', '<f4'), 'fortran_order': False, 'shape': (2,)}"})
    EXPECT_EQ(refused(npy(wrong, "12345678")), "its header says nothing of a type, an order and a shape") << wrong;
  for (const char* type : {"'>f4'", "'<f2'", "'<U5'", "'|O'", "[('a', '<f4')]"}) {
    EXPECT_NE(refused(npy(std::string("{'descr': ") + type + ", 'fortran_order': False, 'shape': (2,), }", "12345678"))
                  .find("expected values of float32, float64, int32, int64, uint8 or bool, little-endian, found"),
              std::string::npos);
  }
  EXPECT_NE(
      refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000000), }", "")).find("says"),
      std::string::npos);
}

TEST(Npz, RefusesWhatItCannotHold) {
  std::ostringstream stream;
  NpzWriter npz(stream);
  const std::vector<float> values(3);
  const NpyView array{.shape = {3}, .bytes = bytes_of(values)};
  npz.add("a", array);
  EXPECT_EQ(testing::usage_error([&] { npz.add("a", array); }), "the array 'a' is there already");
  EXPECT_EQ(testing::usage_error([&] { npz.add("", array); }), "'' names no array");
  const std::size_t before = stream.str().size();
  EXPECT_EQ(testing::usage_error([&] { npz.add("b", {.shape = {4}, .bytes = bytes_of(values)}); }),
            "12 bytes are no array of the shape [4] of float32");
  EXPECT_EQ(stream.str().size(), before);
  npz.finish();
  EXPECT_EQ(testing::usage_error([&] { npz.add("b", array); }), "the archive is finished: nothing can be added to it");
}

TEST(Npz, IsTheSameWheneverItIsWritten) {
  const auto written = [] {
    std::ostringstream stream;
    NpzWriter npz(stream);
    const std::vector<float> values{1, 2, 3};
    npz.add("a", {.shape = {3}, .bytes = bytes_of(values)});
    npz.finish();
    return stream.str();
  };
  EXPECT_EQ(written(), written());
  std::ostringstream full;
  full.setstate(std::ios::badbit);
  NpzWriter npz(full);
  EXPECT_THROW(npz.finish(), Error);
}

}  // namespace
}  // namespace tutti
