#include <tutti/data/idx.hpp>

#include <zlib.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {
namespace {

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};

std::uint32_t big_endian(const std::array<std::uint8_t, 4>& bytes) {
  std::uint32_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace

// Two zeros, the type 8 (bytes), how many dimensions, their sizes, and the values.
torch::Tensor read_idx(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (!file) throw Error(fmt::format("cannot read {}", path.string()));
  const auto read = [&](void* place, std::size_t bytes) {
    constexpr std::size_t kMost = 1 << 30;
    for (std::size_t done = 0; done < bytes;) {
      const auto part = static_cast<unsigned>(std::min(kMost, bytes - done));
      if (gzread(file.get(), static_cast<std::byte*>(place) + done, part) != static_cast<int>(part))
        throw Error(fmt::format("{} ends early, or is damaged", path.string()));
      done += part;
    }
  };
  std::array<std::uint8_t, 4> word{};
  read(word.data(), word.size());
  if (word[0] != 0 || word[1] != 0 || word[2] != 8 || word[3] < 1 || word[3] > 4)
    throw Error(fmt::format("{} is no IDX file of bytes", path.string()));
  std::vector<std::int64_t> sizes(word[3]);
  for (std::int64_t& size : sizes) {
    read(word.data(), word.size());
    size = big_endian(word);
  }
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;
  const std::optional<std::int64_t> count = element_count(sizes);
  if (!count || *count > kMostBytes)
    throw Error(fmt::format("{} says that it has {} values", path.string(), to_string(sizes)));
  torch::Tensor values = torch::empty(sizes, torch::kUInt8);
  read(values.data_ptr(), values.nbytes());
  return values;
}

}  // namespace tutti
