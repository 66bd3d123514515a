// In step j a rank exchanges its whole array with the partner whose number differs in bit j, and both fold the two, the
// lower range first: after log2(P) steps everybody has everything. Other numbers of ranks: plans/pairs.hpp.
#include "builder.hpp"
#include "pairs.hpp"

namespace tutti::plans {

void recursive_doubling(Builder& plan, const PlanRequest& request) {
  const Pairs pairs(plan.size());
  const Region all = destination(plan.whole());
  // The contributions of the ranks that numbers [first, end) stand for lie side by side.
  const auto contributions = [&](int first, int end) {
    const auto from = static_cast<std::size_t>(pairs.first_rank(first));
    const auto to = static_cast<std::size_t>(pairs.first_rank(end));
    return scratch({from * plan.length(), (to - from) * plan.length()});
  };

  if (!pairs.enter(plan, request.reproducible, pairs.log2())) return;

  const int number = pairs.number_of(plan.rank());
  if (!request.reproducible) plan.need_scratch(plan.length());
  for (int distance = 1; distance < pairs.count; distance *= 2) {
    const int partner = number ^ distance;
    const int peer = pairs.first_rank(partner);
    if (request.reproducible) {
      const int mine = number & ~(distance - 1);
      const int theirs = partner & ~(distance - 1);
      plan.send(peer, contributions(mine, mine + distance));
      plan.receive(peer, contributions(theirs, theirs + distance));
    } else {
      plan.send(peer, all);
      plan.receive(peer, scratch(plan.whole()));
      plan.settle();
      plan.fold(all, scratch(plan.whole()), partner < number ? FoldOrder::incoming_lower : FoldOrder::own_lower);
    }
    plan.next_step();
  }
  if (request.reproducible) {
    plan.fold_all(all, plan.whole());
  } else {
    plan.divide(all);
  }
  pairs.leave(plan);
}

}  // namespace tutti::plans
