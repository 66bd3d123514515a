#include "data_parallel_accuracy.hpp"

#include <cstdint>

#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <tutti/nn/data_parallel.hpp>

#include "data_parallel_models.hpp"
#include "fashion_mnist.hpp"

namespace tutti::bench {
namespace {

constexpr double kLearningRate = 0.04;  // falls to 0 in even steps
constexpr double kMomentum = 0.9;

double share_told_right(torch::nn::SequentialImpl& net, const Batch& images) {
  constexpr std::int64_t kAtOnce = 1000;
  const torch::NoGradGuard guard;
  std::int64_t right = 0;
  for (std::int64_t first = 0; first < images.data.size(0); first += kAtOnce) {
    const torch::Tensor told = net.forward(images.data.narrow(0, first, kAtOnce)).argmax(1);
    right += told.eq(images.target.narrow(0, first, kAtOnce)).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(images.data.size(0));
}

}  // namespace

AccuracyResult measure_accuracy(const AccuracyWork& work) {
  const Batch train = load_fashion_mnist("train");
  const Batch test = load_fashion_mnist("t10k");
  torch::nn::Sequential net = make_model(work.model);
  DataParallel<torch::nn::SequentialImpl> parallel(
      net.ptr(), torch::optim::SGDOptions(kLearningRate).momentum(kMomentum),
      DataParallelOptions{.replicas = work.replicas, .compression = work.compression});
  auto& options = static_cast<torch::optim::SGDOptions&>(parallel.optimizer().param_groups().front().options());
  torch::manual_seed(2);
  const std::int64_t steps = work.epochs * ((train.data.size(0) + work.batch - 1) / work.batch);
  std::int64_t step = 0;
  for (int epoch = 0; epoch < work.epochs; ++epoch) {
    for (const torch::Tensor& rows : torch::randperm(train.data.size(0)).split(work.batch)) {
      options.lr(kLearningRate * (1 - static_cast<double>(step++) / static_cast<double>(steps)));
      const Batch batch{train.data.index_select(0, rows), train.target.index_select(0, rows)};
      parallel.step(batch,
                    [](torch::nn::SequentialImpl& replica, const Batch& mine) { return loss_of(replica, mine); });
    }
  }
  const CompressionTally tally = parallel.compression_tally();
  return {.engine = "tutti",
          .model = work.model,
          .batch = work.batch,
          .compression = to_string(work.compression),
          .epochs = work.epochs,
          .accuracy = share_told_right(*net, test),
          .gradient_bytes = tally.gradients.value,
          .sent_bytes = tally.sent.value};
}

}  // namespace tutti::bench
