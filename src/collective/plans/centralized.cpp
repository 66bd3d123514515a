// One rank, the centre, receives everybody's array, reduces them, and sends the result back. The centre of an
// all-reduce is rank 0; of a reduce or broadcast it is the root.
//
// The centre folds its lower neighbours into itself from the nearest down and its upper ones from the nearest up, so
// that what it holds always stems from a contiguous range of ranks and either side of a fold is the lower one as a
// whole.
#include "builder.hpp"

namespace tutti::plans {
namespace {

void reduce_to(Builder& plan, int centre, bool reproducible) {
  if (plan.rank() != centre) {
    plan.send(centre, source(plan.whole()));
    return;
  }
  if (reproducible) {
    plan.keep_contribution();
    for (int peer = 0; peer < plan.size(); ++peer) {
      if (peer != centre) plan.receive(peer, plan.contribution(peer, plan.whole()));
    }
    plan.fold_all(destination(plan.whole()), plan.whole());
    return;
  }
  for (int peer = centre - 1; peer >= 0; --peer) {
    plan.receive_fold(peer, destination(plan.whole()), FoldOrder::incoming_lower);
  }
  for (int peer = centre + 1; peer < plan.size(); ++peer) {
    plan.receive_fold(peer, destination(plan.whole()), FoldOrder::own_lower);
  }
  plan.divide(destination(plan.whole()));
}

void send_from(Builder& plan, int centre) {
  if (plan.rank() != centre) {
    plan.receive(centre, destination(plan.whole()));
    return;
  }
  for (int peer = 0; peer < plan.size(); ++peer) {
    if (peer != centre) plan.send(peer, destination(plan.whole()));
  }
}

}  // namespace

void centralized(Builder& plan, const PlanRequest& request) {
  const int centre = request.call == CallKind::all_reduce ? 0 : request.root.value;
  if (request.call != CallKind::broadcast) reduce_to(plan, centre, request.reproducible);
  plan.next_step();
  if (request.call != CallKind::reduce) send_from(plan, centre);
}

}  // namespace tutti::plans
