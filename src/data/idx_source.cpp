// Images and labels in IDX files: {"source": "idx", "train_images": ..., "train_labels": ..., "test_images": ...,
// "test_labels": ..., "classes": 10}.
#include <optional>

#include <fmt/format.h>

#include "idx_rows.hpp"
#include "labels.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

DataSource resolve_idx(const Options& options) {
  const IdxPair train{.images = options.at("train_images").existing_file(),
                      .labels = options.at("train_labels").existing_file()};
  std::optional<IdxPair> test;
  const std::optional<JsonValue> test_images = options.find("test_images");
  const std::optional<JsonValue> test_labels = options.find("test_labels");
  if (test_images.has_value() != test_labels.has_value())
    throw options.error("expected both test_images and test_labels, or none of them");
  if (test_images) test = {.images = test_images->existing_file(), .labels = test_labels->existing_file()};

  const Shape shape = idx_row_shape(train.images);
  if (test && idx_row_shape(test->images) != shape) {
    throw UsageError(fmt::format("{}: expected rows of {}, as in {}, found {}", test->images.string(), to_string(shape),
                                 train.images.string(), to_string(idx_row_shape(test->images))));
  }
  std::int64_t classes = options.integer("classes", {.min = 1, .max = kMostSize}, 0);
  if (classes == 0) classes = count_classes(train.labels, read_idx_labels(train.labels));
  return {.description = {.inputs = {{"image", {.shape = shape}}},
                          .target = {.shape = {}, .type = ValueType::int64},
                          .classes = classes},
          .open =
              [train, test, classes] {
                if (test) return read_idx_splits(train, *test, classes);
                return DataSplits{.train = read_idx_rows(train, classes)};
              },
          .has_test = test.has_value(),
          .read_inputs = read_idx_images};
}

}  // namespace

void add_idx(DataSourceRegistry& registry) { registry.add({.name = "idx", .resolve = resolve_idx}); }

}  // namespace tutti::detail
