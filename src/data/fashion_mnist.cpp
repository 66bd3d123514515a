// Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017), from Debian's dataset-fashion-mnist: 60,000 images of 10 kinds of
// clothes to learn from, and 10,000 to test with, grey values in 0..1.
#include <filesystem>

#include <fmt/format.h>

#include "idx_rows.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

constexpr const char* kFashionFolder = "/usr/share/datasets/fashion-mnist";
constexpr std::int64_t kFashionClasses = 10;

DataSplits open_fashion_mnist() {
  const std::filesystem::path folder = kFashionFolder;
  if (!std::filesystem::exists(folder))
    throw Error(fmt::format("Fashion-MNIST is not in {}; install Debian's dataset-fashion-mnist", kFashionFolder));
  const auto files = [&](const std::string& part) {
    return IdxPair{.images = folder / (part + "-images-idx3-ubyte.gz"),
                   .labels = folder / (part + "-labels-idx1-ubyte.gz")};
  };
  return read_idx_splits({files("train")}, files("t10k"), kFashionClasses);
}

}  // namespace

void add_fashion_mnist(DataSourceRegistry& registry) {
  registry.add({.name = "fashion_mnist", .resolve = [](const Options&) {
                  return DataSource{
                      .description = {.inputs = {{"image", {.shape = {1, 28, 28}}}},
                                      .target = {.shape = {}, .type = ValueType::int64},
                                      .classes = kFashionClasses,
                                      .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal",
                                                      "Shirt", "Sneaker", "Bag", "Ankle boot"}},
                      .open = open_fashion_mnist,
                      .read_inputs = read_idx_images};
                }});
}

}  // namespace tutti::detail
