// A training loop over ranks, each with its own rows: as threads, or as processes on any number of hosts.
//
//   ./distributed                                             two threads of one process
//   tutti launch --processes 4 -- ./distributed               four processes
//   torchrun --nproc_per_node 4 --no_python ./distributed     the same
#include <iostream>
#include <stdexcept>

#include <torch/torch.h>
#include <tutti/c10d/run.hpp>
#include <tutti/nn/distributed_module.hpp>

namespace {

// Points of the plane, and whether they lie in a ring around the middle.
std::pair<torch::Tensor, torch::Tensor> draw_points(std::int64_t count, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const torch::Tensor points = torch::rand({count, 2}, generator, torch::kFloat32) * 2 - 1;
  const torch::Tensor radius = points.norm(2, 1);
  return {points, (radius > 0.4).logical_and(radius < 0.8).to(torch::kInt64)};
}

void train(tutti::Communicator& its_world) {
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 2));
  tutti::DistributedModule model(net.ptr(), std::move(its_world));  // all have rank 0's parameters now
  torch::optim::Adam optimizer(net->parameters(), 3e-3);
  // One rank has fewer batches than the others.
  const int batches = model.rank().value == 0 ? 380 : 400;
  for (int batch = 0; batch < batches; ++batch) {
    const auto [points, inside] =
        draw_points(64, static_cast<std::uint64_t>(batch * model.size() + model.rank().value));
    net->zero_grad(true);
    model.backward(
        torch::nn::functional::cross_entropy(net->forward(points), inside));  // gradients: the mean over ranks
    model.step(optimizer);
  }
  model.join();  // until all are done

  const torch::NoGradGuard no_grad;
  const auto [points, inside] = draw_points(2'000, 1'000'000);
  const double right = net->forward(points).argmax(1).eq(inside).to(torch::kFloat32).mean().item<double>();
  if (model.rank() == tutti::Rank{0}) std::cout << model.describe() << "; right " << 100 * right << " %\n";
  if (right < 0.9) throw std::runtime_error("that is too few");
}

}  // namespace

int main() {
  try {
    tutti::c10d::run(train, {.threads = 2});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
