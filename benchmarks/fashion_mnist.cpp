#include "fashion_mnist.hpp"

#include <filesystem>

#include <fmt/format.h>
#include <torch/types.h>
#include <tutti/base/error.hpp>
#include <tutti/data/idx.hpp>

namespace tutti::bench {
namespace {

constexpr const char* kFolder = "/usr/share/datasets/fashion-mnist";

}  // namespace

Batch load_fashion_mnist(const std::string& part) {
  const std::filesystem::path folder = kFolder;
  if (!std::filesystem::exists(folder))
    throw Error(fmt::format("there is no {}; install dataset-fashion-mnist", kFolder));
  const torch::Tensor images = read_idx(folder / (part + "-images-idx3-ubyte.gz"));
  const torch::Tensor labels = read_idx(folder / (part + "-labels-idx1-ubyte.gz"));
  if (images.dim() != 3 || labels.dim() != 1 || images.size(0) != labels.size(0))
    throw Error(fmt::format("the images and labels of {} in {} do not belong together", part, kFolder));
  return {images.to(torch::kFloat32).div_(255).unsqueeze(1), labels.to(torch::kLong)};
}

}  // namespace tutti::bench
