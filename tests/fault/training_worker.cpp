// One of several processes that train a network together; or one process whose threads do.
//
//   training_worker bits <replicas>       prints a digest of what a training run of 8 logical shards makes: as many
//   replicas, or
//                                         where processes were started together, one on each of these
//   training_worker recover <rank>        trains until that rank is lost, then goes on with those left
//
// Prints what it does, a line each, and ends with 0; with 3 where something is wrong.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <tutti/c10d/join.hpp>
#include <tutti/collective.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/distributed_module.hpp>
#include <tutti/transport/environment.hpp>

namespace {

using namespace tutti;
using namespace std::chrono_literals;
using Batch = std::pair<torch::Tensor, torch::Tensor>;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    convolution = register_module("convolution", torch::nn::Conv2d(1, 6, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    linear = register_module("linear", torch::nn::Linear(6 * 6 * 6, 5));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor hidden = torch::relu(norm(convolution(images))).flatten(1);
    return linear(torch::dropout(hidden, 0.25, is_training()));
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

std::shared_ptr<Net> make_net() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

Batch make_batch(std::int64_t rows, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return {torch::randn({rows, 1, 8, 8}, generator, torch::kFloat32),
          torch::randint(0, 5, {rows}, generator, torch::kInt64)};
}

torch::Tensor loss_of(Net& net, const Batch& rows) {
  return torch::nn::functional::cross_entropy(net.forward(rows.first), rows.second);
}

class Digest {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* its = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ its[i]) * 0x100000001b3u;
  }
  void add(const torch::nn::Module& module) {
    for (const torch::Tensor& one : module.parameters()) add(one.data_ptr(), one.nbytes());
    for (const torch::Tensor& one : module.buffers()) add(one.data_ptr(), one.nbytes());
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

int tell_bits(int replicas) {
  constexpr int kShards = 8;
  constexpr int kSteps = 5;
  const auto options = torch::optim::AdamOptions(1e-2);
  const auto net = make_net();
  Digest digest;
  if (discover_place()) {
    DistributedModule model(net, Communicator(c10d::join(), {.deadline = 60s}),
                            {.logical_shards = kShards, .seed = 11});
    torch::optim::Adam optimizer(net->parameters(), options);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const double loss = model.backward(make_batch(27, step), [&](const Batch& rows) { return loss_of(*net, rows); });
      digest.add(&loss, sizeof loss);
      model.step(optimizer);
    }
  } else {
    DataParallel parallel(net, options, {.replicas = replicas, .logical_shards = kShards, .seed = 11});
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const double loss =
          parallel.step(make_batch(27, step), [](Net& replica, const Batch& rows) { return loss_of(replica, rows); });
      digest.add(&loss, sizeof loss);
    }
  }
  digest.add(*net);
  fmt::print("digest {:016x}\n", digest.value());
  return 0;
}

int recover(Rank lost) {
  const auto net = make_net();
  DistributedModule model(net, Communicator(c10d::join(), {.deadline = 60s}), {.bucket_size = Bytes{256}});
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  const auto train = [&](std::uint64_t step) {
    net->zero_grad(true);
    model.backward(loss_of(*net, make_batch(8, 100 * step + static_cast<std::uint64_t>(model.rank().value))));
    model.step(optimizer);
  };
  std::vector<Rank> survivors = all_ranks_but(lost, model.size());
  try {
    for (std::uint64_t step = 0;; ++step) {
      train(step);
      if (step == 3) fmt::print("training\n");
    }
  } catch (const PeerError& error) {
    fmt::print("heard: {}\n", error.what());
    if (error.ranks() != std::vector{lost}) return 3;
  }
  model.rebuild(survivors);
  for (std::uint64_t step = 0; step < 5; ++step) train(step);
  Digest digest;
  digest.add(*net);
  std::vector<std::int64_t> digests(static_cast<std::size_t>(model.size()));
  const auto mine = static_cast<std::int64_t>(digest.value());
  all_gather(model.world(), ConstArray(&mine, 1, DataType::int64), digests);
  for (std::int64_t one : digests) {
    if (one != mine) {
      fmt::print("WRONG: the parameters differ\n");
      return 3;
    }
  }
  fmt::print("went on with {}\n", model.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const std::string verb = argc == 3 ? argv[1] : "";
    if (verb == "bits") return tell_bits(std::atoi(argv[2]));
    if (verb == "recover") return recover(Rank{std::atoi(argv[2])});
    return 2;
  } catch (const std::exception& error) {
    fmt::print("WRONG: {}\n", error.what());
    return 3;
  }
}
