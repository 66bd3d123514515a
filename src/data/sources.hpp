// The data sources that tutti has, a file for each.
#pragma once

#include <tutti/data/dataset.hpp>

namespace tutti::detail {

void add_csv(DataSourceRegistry& registry);
void add_fashion_mnist(DataSourceRegistry& registry);
void add_idx(DataSourceRegistry& registry);
void add_mnist(DataSourceRegistry& registry);
void add_npy(DataSourceRegistry& registry);
void add_text(DataSourceRegistry& registry);

// Of several files, as the rows of one; of one file as they are.
std::shared_ptr<const Dataset> rows_of_files(std::vector<std::shared_ptr<const Dataset>> files);

// Rows without a target.
std::shared_ptr<const Dataset> rows_without_target(torch::Tensor inputs);
// Of a .npy file. Images may lack the dimension of their one channel.
std::shared_ptr<const Dataset> read_npy_inputs(const std::filesystem::path& path, const ValueSpec& expected);

}  // namespace tutti::detail
