// In step j of the halving half a rank and the partner whose number differs in bit j cut the slice they both work on
// into two; the lower number keeps the lower part, each sends the other's part and folds what comes into its own. In
// the end each owns a slice, reduced. The doubling half goes the same way back: partners exchange what they own, and
// own both. Other numbers of ranks: plans/pairs.hpp.
#include <array>

#include "builder.hpp"
#include "pairs.hpp"

namespace tutti::plans {
namespace {

struct Halves {
  Slice kept;
  Slice given;
};

Halves halve(Slice slice, bool keep_lower) {
  Slice lower = chunk(slice.count, 2, 0);
  Slice upper = chunk(slice.count, 2, 1);
  lower.first += slice.first;
  upper.first += slice.first;
  return keep_lower ? Halves{lower, upper} : Halves{upper, lower};
}

}  // namespace

void halving_doubling(Builder& plan, const PlanRequest& request) {
  const Pairs pairs(plan.size());

  if (!pairs.enter(plan, request.reproducible, 2 * pairs.log2())) return;

  const int number = pairs.number_of(plan.rank());
  std::array<Halves, 32> levels{};
  Slice mine = plan.whole();
  std::size_t level = 0;
  for (int distance = 1; distance < pairs.count; distance *= 2, ++level) {
    const int partner = number ^ distance;
    const int peer = pairs.first_rank(partner);
    levels[level] = halve(mine, number < partner);
    const auto [kept, given] = levels[level];
    if (request.reproducible) {
      // What the ranks in each other's range contributed to the part.
      const int my_range = number & ~(distance - 1);
      const int their_range = partner & ~(distance - 1);
      for (int q = pairs.first_rank(my_range); q < pairs.first_rank(my_range + distance); ++q) {
        plan.send(peer, plan.contribution(q, given));
      }
      for (int q = pairs.first_rank(their_range); q < pairs.first_rank(their_range + distance); ++q) {
        plan.receive(peer, plan.contribution(q, kept));
      }
    } else {
      plan.send(peer, destination(given));
      plan.receive_fold(peer, destination(kept), partner < number ? FoldOrder::incoming_lower : FoldOrder::own_lower);
    }
    mine = kept;
    plan.next_step();
  }
  if (request.reproducible) {
    plan.fold_all(destination(mine), mine);
  } else {
    plan.divide(destination(mine));
  }

  for (int distance = pairs.count / 2; distance >= 1; distance /= 2) {
    const int peer = pairs.first_rank(number ^ distance);
    --level;
    plan.send(peer, destination(levels[level].kept));
    plan.receive(peer, destination(levels[level].given));
    plan.next_step();
  }
  pairs.leave(plan);
}

}  // namespace tutti::plans
