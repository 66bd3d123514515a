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

}  // namespace tutti::detail
