// The same program as threads and as processes: each rank brings its number, all get the sum and the mean.
//
//   ./ranks                                                   four threads of one process
//   tutti launch --processes 4 -- ./ranks                     four processes
//   torchrun --nproc_per_node 4 --no_python ./ranks           the same
//   mpirun -n 4 -x TUTTI_STORE=127.0.0.1:29500 ./ranks        the same
#include <iostream>
#include <stdexcept>
#include <vector>

#include <tutti/c10d/run.hpp>
#include <tutti/collective.hpp>

namespace {

void train(tutti::Communicator& world) {
  const int ranks = world.size();
  std::vector<float> gradients(100'000, static_cast<float>(world.rank().value));
  tutti::all_reduce(world, gradients, {.algorithm = tutti::Ring{}, .op = tutti::ReduceOp::mean});

  std::vector<std::int64_t> samples{world.rank().value + 1};
  tutti::all_reduce(world, samples);

  const bool right = gradients.back() == static_cast<float>(ranks - 1) / 2 && samples[0] == ranks * (ranks + 1) / 2;
  if (!right) throw std::runtime_error("the sums are wrong");
  if (world.rank() == tutti::Rank{0}) {
    std::cout << ranks << " ranks (" << tutti::to_string(world.shape().locality) << "), the mean gradient is "
              << gradients[0] << "\n";
  }
}

}  // namespace

int main() {
  try {
    tutti::c10d::run(train, {.threads = 4});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
