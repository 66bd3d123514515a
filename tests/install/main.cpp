// Four ranks add up their numbers; ends with 0 when every rank got the sum.
#include <atomic>
#include <cstdio>
#include <span>
#include <vector>

#include <tutti/collective.hpp>

int main() {
  constexpr int kRanks = 4;
  std::atomic<int> right{0};
  tutti::run_ranks(kRanks, [&](tutti::Communicator& world) {
    std::vector<float> numbers(1000, static_cast<float>(world.rank().value + 1));
    tutti::all_reduce(world, std::span(numbers), {.algorithm = tutti::Ring{}});
    if (numbers == std::vector<float>(1000, 1 + 2 + 3 + 4)) ++right;
  });
  std::printf("%d of %d ranks got the sum\n", right.load(), kRanks);
  return right == kRanks ? 0 : 1;
}
