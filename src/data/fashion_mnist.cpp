// Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017), from Debian's dataset-fashion-mnist: 60,000 images of 10 kinds of
// clothes to learn from, and 10,000 to test with, grey values in 0..1.
#include <filesystem>

#include <fmt/format.h>
#include <tutti/data/idx.hpp>

#include "sources.hpp"

namespace tutti::detail {
namespace {

constexpr const char* kFolder = "/usr/share/datasets/fashion-mnist";

std::shared_ptr<const Dataset> load(const std::string& part) {
  const std::filesystem::path folder = kFolder;
  if (!std::filesystem::exists(folder))
    throw Error(fmt::format("Fashion-MNIST is not in {}; install Debian's dataset-fashion-mnist", kFolder));
  const torch::Tensor images = read_idx(folder / (part + "-images-idx3-ubyte.gz"));
  const torch::Tensor labels = read_idx(folder / (part + "-labels-idx1-ubyte.gz"));
  if (images.dim() != 3 || labels.dim() != 1 || images.size(0) != labels.size(0))
    throw Error(fmt::format("the images and labels of {} in {} do not belong together", part, kFolder));
  return std::make_shared<TensorDataset>(std::vector{images.to(torch::kFloat32).div_(255).unsqueeze(1)},
                                         labels.to(torch::kInt64));
}

}  // namespace

void add_fashion_mnist(DataSourceRegistry& registry) {
  registry.add({.name = "fashion_mnist", .resolve = [](const Options&) {
                  return DataSource{.description = {.inputs = {{"image", {.shape = {1, 28, 28}}}},
                                                    .target = {.shape = {}, .type = ValueType::int64},
                                                    .classes = 10},
                                    .open = [] { return DataSplits{.train = load("train"), .test = load("t10k")}; }};
                }});
}

}  // namespace tutti::detail
