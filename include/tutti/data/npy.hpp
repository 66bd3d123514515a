// Arrays in numpy's own format, .npy: what numpy.save writes and numpy.load reads.
//
//   NpyArray array = read_npy("images.npy");
//   array.shape;                                                       // {60000, 28, 28}
//   array.type;                                                        // NpyType::uint8
//
//   std::ofstream file("weights.npy", std::ios::binary);
//   write_npy(file, {.type = NpyType::float32, .shape = {2, 3}, .bytes = std::as_bytes(std::span(values))});
//
// Values are in C order: the last index runs quickest. What is written is so; what is read in Fortran order is turned
// round. Files are little-endian, of version 1, 2 or 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/shape.hpp>

namespace tutti {

enum class NpyType : std::uint8_t { float32, float64, int32, int64, uint8, boolean };
std::string_view to_string(NpyType type);
std::size_t size_of(NpyType type);

struct NpyArray {
  NpyType type = NpyType::float32;
  Shape shape = {};
  std::vector<std::byte> bytes = {};
};

// A UsageError names a file that cannot be read, is no .npy file, ends early, goes on after its values, or has values
// of another type.
NpyArray read_npy(const std::filesystem::path& path);
// The same without the values: `bytes` stays empty. They are there all the same, and as many as the shape says.
NpyArray read_npy_header(const std::filesystem::path& path);

// An array that lies elsewhere.
struct NpyView {
  NpyType type = NpyType::float32;
  Shape shape = {};
  std::span<const std::byte> bytes = {};
};

// What stands before the values. A UsageError where the bytes are not those of such a shape.
std::string npy_header(const NpyView& array);
// Both; an Error where they cannot be written.
void write_npy(std::ostream& stream, const NpyView& array);

}  // namespace tutti
