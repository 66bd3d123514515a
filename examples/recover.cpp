// One of four ranks fails in the middle of the work. The others are told at once who it was, form a new world without
// it, and go on.
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <vector>

#include <tutti/collective.hpp>

namespace {

void train(tutti::Communicator& world) {
  std::vector<float> gradients(1000, 1.0f);
  try {
    if (world.rank() == tutti::Rank{2}) throw std::runtime_error("out of memory");
    tutti::all_reduce(world, gradients);
  } catch (const tutti::PeerError& error) {
    std::vector<tutti::Rank> survivors;
    for (tutti::Rank rank : tutti::all_ranks(world.size())) {
      if (rank != error.ranks().front()) survivors.push_back(rank);
    }
    tutti::Communicator rest = world.rebuild(survivors);
    gradients.assign(gradients.size(), 1.0f);  // a failed call leaves unspecified values
    tutti::all_reduce(rest, gradients);
    if (gradients[0] != 3.0f) std::exit(1);
    if (rest.rank() == tutti::Rank{0}) std::cout << error.what() << "\nwent on with " << rest.size() << " ranks\n";
  }
}

}  // namespace

int main() {
  try {
    tutti::run_ranks(4, train);
  } catch (const std::runtime_error& error) {
    std::cout << "the first error was: " << error.what() << "\n";
    return 0;
  }
  return 1;  // the failure must not be lost
}
