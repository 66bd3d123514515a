// Several arrays in one file, .npz: what numpy.savez writes and numpy.load reads, a zip archive of .npy files.
//
//   std::ofstream file("weights.npz", std::ios::binary);
//   NpzWriter npz(file);
//   npz.add("hidden.weight", {.type = NpyType::float32, .shape = {256, 784}, .bytes = bytes});
//   npz.finish();                                   // without it, the file is no archive
//
//   numpy.load("weights.npz")["hidden.weight"]
//
// Nothing is packed, and nothing of when it was written is kept: the same arrays make the same file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <tutti/data/npy.hpp>

namespace tutti {

struct NpzOptions {
  // Sizes and places from here on are written in the wider fields of zip64. Tests write small files in them.
  std::uint64_t zip64_from = 0xffffffff;
};

// One thread at a time. What cannot be written is an Error.
class NpzWriter {
 public:
  explicit NpzWriter(std::ostream& stream, NpzOptions options = {});

  // A UsageError where the name is there already, or the bytes are not those of the shape.
  void add(const std::string& name, const NpyView& array);
  // The list of what there is; nothing may be added after it.
  void finish();

 private:
  struct Entry {
    std::string name;
    std::uint32_t crc = 0;
    std::uint64_t size = 0;
    std::uint64_t place = 0;
  };

  void write(const std::string& bytes);

  std::ostream& stream_;
  NpzOptions options_;
  std::vector<Entry> entries_;
  std::uint64_t written_ = 0;
  bool is_finished_ = false;
};

}  // namespace tutti
