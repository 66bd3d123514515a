// Images and labels in IDX files: {"source": "idx", "train_images": ..., "train_labels": ..., "test_images": ...,
// "test_labels": ..., "classes": 10}. Those to train with may be lists, of as many files each.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "idx_rows.hpp"
#include "labels.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

DataSource resolve_idx(const Options& options) {
  const std::vector<std::filesystem::path> images = options.at("train_images").existing_files();
  const std::vector<std::filesystem::path> labels = options.at("train_labels").existing_files();
  if (images.size() != labels.size())
    throw options.at("train_labels")
        .error(fmt::format("expected {} files, as many as of images, found {}", images.size(), labels.size()));
  std::vector<IdxPair> train;
  for (std::size_t i = 0; i < images.size(); ++i) train.push_back({.images = images[i], .labels = labels[i]});
  std::optional<IdxPair> test;
  const std::optional<JsonValue> test_images = options.find("test_images");
  const std::optional<JsonValue> test_labels = options.find("test_labels");
  if (test_images.has_value() != test_labels.has_value())
    throw options.error("expected both test_images and test_labels, or none of them");
  if (test_images) test = {.images = test_images->existing_file(), .labels = test_labels->existing_file()};

  const Shape shape = idx_row_shape(images.front());
  const auto expect_alike = [&](const std::filesystem::path& path) {
    if (const Shape its = idx_row_shape(path); its != shape)
      throw UsageError(fmt::format("{}: expected rows of {}, as in {}, found {}", path.string(), to_string(shape),
                                   images.front().string(), to_string(its)));
  };
  for (const std::filesystem::path& path : images) expect_alike(path);
  if (test) expect_alike(test->images);
  std::int64_t classes = options.integer("classes", {.min = 1, .max = kMostSize}, 0);
  if (classes == 0) {
    for (const std::filesystem::path& path : labels)
      classes = std::max(classes, count_classes(path, read_idx_labels(path)));
  }
  return {.description = {.inputs = {{"image", {.shape = shape}}},
                          .target = {.shape = {}, .type = ValueType::int64},
                          .classes = classes},
          .open =
              [train, test, classes] {
                if (test) return read_idx_splits(train, *test, classes);
                return DataSplits{.train = read_idx_files(train, classes)};
              },
          .has_test = test.has_value(),
          .files = images,
          .read_inputs = read_idx_images};
}

}  // namespace

void add_idx(DataSourceRegistry& registry) { registry.add({.name = "idx", .resolve = resolve_idx}); }

}  // namespace tutti::detail
