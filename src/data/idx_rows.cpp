#include "idx_rows.hpp"

#include <future>

#include <fmt/format.h>
#include <tutti/data/idx.hpp>

#include "labels.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t kPlainImages = 3;  // dimensions: images, lines, columns

}  // namespace

Shape idx_row_shape(const std::filesystem::path& images) {
  const Shape shape = read_idx_shape(images);
  if (shape.size() < 2)
    throw UsageError(fmt::format("{}: expected rows of numbers, found {}", images.string(), to_string(shape)));
  Shape row(shape.begin() + 1, shape.end());
  if (shape.size() == kPlainImages) row.insert(row.begin(), 1);
  return row;
}

torch::Tensor read_idx_labels(const std::filesystem::path& path) {
  const torch::Tensor labels = read_idx(path);
  if (labels.dim() != 1) {
    throw UsageError(
        fmt::format("{}: expected labels, one for each row, found {}", path.string(), to_string(labels.sizes().vec())));
  }
  return labels.to(torch::kInt64);
}

std::shared_ptr<const Dataset> read_idx_rows(const IdxPair& files, std::int64_t classes) {
  torch::Tensor images = read_idx(files.images);
  const torch::Tensor labels = read_idx_labels(files.labels);
  if (images.size(0) != labels.size(0)) {
    throw UsageError(fmt::format("{}: expected {} labels, one for each row of {}, found {}", files.labels.string(),
                                 images.size(0), files.images.string(), labels.size(0)));
  }
  if (images.size(0) == 0) throw UsageError(fmt::format("{}: there are no rows", files.images.string()));
  refuse_unless_classes(files.labels, labels, classes);
  if (images.dim() == static_cast<std::int64_t>(kPlainImages)) images = images.unsqueeze(1);
  return std::make_shared<TensorDataset>(std::vector{images}, labels);
}

std::shared_ptr<const Dataset> read_idx_files(const std::vector<IdxPair>& files, std::int64_t classes) {
  std::vector<std::shared_ptr<const Dataset>> parts;
  for (const IdxPair& pair : files) parts.push_back(read_idx_rows(pair, classes));
  return rows_of_files(std::move(parts));
}

std::shared_ptr<const Dataset> read_idx_images(const std::filesystem::path& path) {
  torch::Tensor images = read_idx(path);
  if (images.dim() == static_cast<std::int64_t>(kPlainImages)) images = images.unsqueeze(1);
  return rows_without_target(images);
}

// Most of the time goes into unpacking, which one thread does for one file.
DataSplits read_idx_splits(const std::vector<IdxPair>& train, const IdxPair& test, std::int64_t classes) {
  auto for_testing = std::async(std::launch::async, [&] { return read_idx_rows(test, classes); });
  std::shared_ptr<const Dataset> for_training = read_idx_files(train, classes);
  return {.train = std::move(for_training), .test = for_testing.get()};
}

}  // namespace tutti::detail
