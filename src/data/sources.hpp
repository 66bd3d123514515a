// The data sources that tutti has, a file for each.
#pragma once

#include <tutti/data/dataset.hpp>

namespace tutti::detail {

void add_fashion_mnist(DataSourceRegistry& registry);

}  // namespace tutti::detail
