// Files of the IDX format, as MNIST comes in; packed by gzip, or plain.
//
//   torch::Tensor images = read_idx("train-images-idx3-ubyte.gz");     // 60000 x 28 x 28 of uint8
//   read_idx_shape("train-images-idx3-ubyte.gz");                      // {60000, 28, 28}, without reading on
#pragma once

#include <filesystem>

#include <torch/types.h>
#include <tutti/base/shape.hpp>

namespace tutti {

// A UsageError names a file that cannot be read, ends early, goes on after its values, or is no IDX file of bytes.
torch::Tensor read_idx(const std::filesystem::path& path);
Shape read_idx_shape(const std::filesystem::path& path);

}  // namespace tutti
