// Trains a network of one's own on Fashion-MNIST, data-parallel: a replica on each core, one set of parameters.
//
//   ./data_parallel                 the first 6,000 images of Debian's dataset-fashion-mnist, twice: some seconds, 75 %
//   ./data_parallel 60000           all of them
#include <zlib.h>
#include <iostream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>
#include <tutti/nn/data_parallel.hpp>

namespace {

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 5).stride(2)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 5).stride(2)));
    last = register_module("last", torch::nn::Linear(16 * 4 * 4, 10));
  }
  torch::Tensor forward(torch::Tensor images) {
    images = torch::relu(second(torch::relu(first(images))));
    return last(torch::dropout(images.flatten(1), 0.1, is_training()));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};

// An IDX file of bytes, behind its header.
torch::Tensor read(const std::string& name, std::int64_t header, std::int64_t count, std::int64_t row) {
  torch::Tensor bytes = torch::empty({header + count * row}, torch::kUInt8);
  const gzFile file = gzopen(("/usr/share/datasets/fashion-mnist/" + name + "-ubyte.gz").c_str(), "rb");
  const int found = file == nullptr ? -1 : gzread(file, bytes.data_ptr(), static_cast<unsigned>(bytes.numel()));
  if (file != nullptr) gzclose(file);
  if (found != bytes.numel()) throw std::runtime_error(name + " cannot be read; install dataset-fashion-mnist");
  return bytes.slice(0, header).reshape({count, row});
}

using Images = std::pair<torch::Tensor, torch::Tensor>;  // pixels and labels

Images load(const std::string& part, std::int64_t count) {
  return {read(part + "-images-idx3", 16, count, 28 * 28).to(torch::kFloat32).div_(255).reshape({-1, 1, 28, 28}),
          read(part + "-labels-idx1", 8, count, 1).to(torch::kInt64).flatten()};
}

void train(std::int64_t count) {
  const auto [pixels, labels] = load("train", count);
  const auto [other_pixels, other_labels] = load("t10k", 10'000);
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  tutti::DataParallel parallel(net, torch::optim::AdamOptions(2e-3), {.replicas = 2, .seed = 1});
  std::cout << parallel.describe() << "\n";
  for (int epoch = 0; epoch < 2; ++epoch) {
    double loss = 0;
    for (const torch::Tensor& rows : torch::randperm(count).split(64)) {
      const Images batch{pixels.index({rows}), labels.index({rows})};
      loss = parallel.step(batch, [](Net& replica, Images& mine) {
        return torch::nn::functional::cross_entropy(replica.forward(mine.first), mine.second);
      });
    }
    const torch::NoGradGuard no_grad;
    net->eval();
    const double right =
        net->forward(other_pixels).argmax(1).eq(other_labels).to(torch::kFloat32).mean().item<double>();
    net->train();
    std::cout << "epoch " << epoch + 1 << ": loss " << loss << ", right " << 100 * right << " %\n";
    if (epoch == 1 && right < 0.7) throw std::runtime_error("that is too few");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  train(argc > 1 ? std::stoll(argv[1]) : 6'000);
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
