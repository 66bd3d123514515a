// Rows whose images and labels are IDX files, as several sources have them.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <tutti/data/dataset.hpp>

namespace tutti::detail {

struct IdxPair {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// Of a row: images of lines and columns get a dimension for their one channel.
Shape idx_row_shape(const std::filesystem::path& images);

// Labels of a file, one number each.
torch::Tensor read_idx_labels(const std::filesystem::path& path);

// A UsageError names the file and the row where a label is no class, and the files that do not belong together.
std::shared_ptr<const Dataset> read_idx_rows(const IdxPair& files, std::int64_t classes);

// The rows of all, one file after the other.
std::shared_ptr<const Dataset> read_idx_files(const std::vector<IdxPair>& files, std::int64_t classes);

// Images alone, without a target.
std::shared_ptr<const Dataset> read_idx_images(const std::filesystem::path& path);

// Both at once.
DataSplits read_idx_splits(const std::vector<IdxPair>& train, const IdxPair& test, std::int64_t classes);

}  // namespace tutti::detail
