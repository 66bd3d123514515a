// Four ranks, threads of one process, average their gradients: at once, with a named algorithm, and in the background.
#include <cstdlib>
#include <iostream>
#include <vector>

#include <tutti/collective.hpp>

int main() {
  tutti::run_ranks(4, [](tutti::Communicator& world) {
    std::vector<float> gradients(1000, static_cast<float>(world.rank().value));
    tutti::all_reduce(world, gradients, {.op = tutti::ReduceOp::mean});  // (0 + 1 + 2 + 3) / 4

    std::vector<double> weights(10, 1.0);
    tutti::all_reduce(world, weights, {.algorithm = tutti::Ring{}, .reproducible = true});

    std::vector<float> next(1000, 1.0f);
    tutti::Pending sum = tutti::start_all_reduce(world, next);
    // ... the next batch is prepared here ...
    sum.wait();

    const bool right = gradients[0] == 1.5f && weights[0] == 4.0 && next[0] == 4.0f;
    if (!right) std::exit(1);
    if (world.rank() == tutti::Rank{0}) std::cout << "the mean gradient is " << gradients[0] << "\n";
  });
}
