// Files of the IDX format, as MNIST comes in; packed by gzip, or plain.
//
//   torch::Tensor images = read_idx("train-images-idx3-ubyte.gz");     // 60000 x 28 x 28 of uint8
#pragma once

#include <filesystem>

#include <torch/types.h>

namespace tutti {

// An Error names a file that cannot be read, ends early, or is no IDX file of bytes.
torch::Tensor read_idx(const std::filesystem::path& path);

}  // namespace tutti
