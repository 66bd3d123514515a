// Labels that are numbers from 0 on, as sources read them.
#pragma once

#include <cstdint>
#include <filesystem>

#include <torch/types.h>

namespace tutti::detail {

// How many classes labels of int64 have: one more than the largest. A UsageError names the file and the row of one
// below 0.
std::int64_t count_classes(const std::filesystem::path& file, const torch::Tensor& labels);

// A UsageError names the file and the row, from 0, of a label that is not from 0 to classes-1.
void refuse_unless_classes(const std::filesystem::path& file, const torch::Tensor& labels, std::int64_t classes);

}  // namespace tutti::detail
