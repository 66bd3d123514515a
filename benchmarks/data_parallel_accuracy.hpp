// What a network learns from Fashion-MNIST where replicas exchange their gradients compressed.
//
//   AccuracyResult result = measure_accuracy({.compression = TopK{.fraction = 0.01}});
#pragma once

#include <string>

#include <tutti/strategy/compression.hpp>

#include "data_parallel_result.hpp"

namespace tutti::bench {

struct AccuracyWork {
  std::string model{kAccuracyModel};
  int batch = 64;
  int replicas = 2;
  int epochs = 5;
  Compression compression = NoCompression{};
};

// The same first parameters and the same order of images for every compression.
AccuracyResult measure_accuracy(const AccuracyWork& work);

}  // namespace tutti::bench
