// Calls in which every part goes from the rank that has it straight to the rank that wants it: gather, scatter and
// all-to-all. In step t of an all-to-all, rank r sends to r+t and receives from r-t, so that nobody is rushed at.
#include "builder.hpp"

namespace tutti::plans {

void linear(Builder& plan, const PlanRequest& request) {
  const int rank = plan.rank();
  const int size = plan.size();
  const int root = request.root.value;
  const auto part = [&](int index) { return Slice{static_cast<std::size_t>(index) * plan.length(), plan.length()}; };

  switch (request.call) {
    case CallKind::gather:
      if (rank != root) return plan.send(root, source(plan.whole()));
      plan.copy(destination(part(rank)), source(plan.whole()));
      for (int peer = 0; peer < size; ++peer) {
        if (peer != root) plan.receive(peer, destination(part(peer)));
      }
      return;
    case CallKind::scatter:
      if (rank != root) return plan.receive(root, destination(plan.whole()));
      for (int peer = 0; peer < size; ++peer) {
        if (peer != root) plan.send(peer, source(part(peer)));
      }
      return plan.copy(destination(plan.whole()), source(part(rank)));
    default:
      plan.copy(destination(part(rank)), source(part(rank)));
      for (int t = 1; t < size; ++t) {
        const int to = (rank + t) % size;
        const int from = (rank - t + size) % size;
        plan.send(to, source(part(to)));
        plan.receive(from, destination(part(from)));
        plan.next_step();
      }
  }
}

}  // namespace tutti::plans
