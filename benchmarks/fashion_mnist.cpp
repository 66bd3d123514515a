#include "fashion_mnist.hpp"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <tutti/base/error.hpp>

namespace tutti::bench {
namespace {

constexpr const char* kFolder = "/usr/share/datasets/fashion-mnist";

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | bytes[i];
  return value;
}

// The bytes of an IDX file: two zeros, the type 8 (bytes), how many dimensions, their sizes, and the values.
torch::Tensor read_idx(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (!file) throw Error(fmt::format("cannot read {}; install dataset-fashion-mnist", path.string()));
  const auto read = [&](void* place, std::size_t bytes) {
    if (gzread(file.get(), place, static_cast<unsigned>(bytes)) != static_cast<int>(bytes))
      throw Error(fmt::format("{} ends early", path.string()));
  };
  std::uint8_t word[4];
  read(word, sizeof(word));
  if (word[0] != 0 || word[1] != 0 || word[2] != 8 || word[3] > 4)
    throw Error(fmt::format("{} is no IDX file of bytes", path.string()));
  std::vector<std::int64_t> sizes(word[3]);
  for (std::int64_t& size : sizes) {
    read(word, sizeof(word));
    size = big_endian(word);
  }
  torch::Tensor values = torch::empty(sizes, torch::kUInt8);
  read(values.data_ptr(), values.nbytes());
  return values;
}

}  // namespace

Batch load_fashion_mnist(const std::string& part) {
  const std::filesystem::path folder = kFolder;
  const torch::Tensor images = read_idx(folder / (part + "-images-idx3-ubyte.gz"));
  const torch::Tensor labels = read_idx(folder / (part + "-labels-idx1-ubyte.gz"));
  if (images.dim() != 3 || labels.dim() != 1 || images.size(0) != labels.size(0))
    throw Error(fmt::format("the images and labels of {} in {} do not belong together", part, kFolder));
  return {images.to(torch::kFloat32).div_(255).unsqueeze(1), labels.to(torch::kLong)};
}

}  // namespace tutti::bench
