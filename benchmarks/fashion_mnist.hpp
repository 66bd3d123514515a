// Fashion-MNIST, from Debian's dataset-fashion-mnist.
//
//   Batch train = load_fashion_mnist("train");   // 60,000 rows of 1 x 28 x 28 in 0..1, and their labels
//   Batch test = load_fashion_mnist("t10k");     // 10,000
#pragma once

#include <string>

#include "data_parallel_models.hpp"

namespace tutti::bench {

// An Error where the package is not installed, or a file is not what it should be.
Batch load_fashion_mnist(const std::string& part);

}  // namespace tutti::bench
