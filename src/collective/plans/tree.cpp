// Each rank reduces its children into itself and sends to its parent; the root's result travels down again.
//
// Ranks are numbered as one meets them walking the tree: a subtree is a contiguous range of ranks that begins with its
// own root, and the rest of the range is cut into `arity` chunks, a child each. So a rank folds ranges in their order.
// The tree of a reduction has root 0; where another rank wants the result it is sent there in one more step. A
// broadcast uses the same tree with all ranks counted from its root.
#include <vector>

#include "builder.hpp"

namespace tutti::plans {
namespace {

struct Range {
  int first = 0;
  int count = 0;
};

// One rank's place in the tree over ranks 0 to size-1.
struct Position {
  int parent = -1;
  int depth = 0;
  Range subtree;
};

Range child_range(Range subtree, int arity, int child) {
  const Slice part = chunk(static_cast<std::size_t>(subtree.count - 1), arity, child);
  return {subtree.first + 1 + static_cast<int>(part.first), static_cast<int>(part.count)};
}

Position find_position(int rank, int size, int arity) {
  Position position{.subtree = {0, size}};
  while (position.subtree.first != rank) {
    for (int child = 0; child < arity; ++child) {
      const Range range = child_range(position.subtree, arity, child);
      if (rank < range.first || rank >= range.first + range.count) continue;
      position = {.parent = position.subtree.first, .depth = position.depth + 1, .subtree = range};
      break;
    }
  }
  return position;
}

// The longest way down: always through the first child, whose chunk is the largest.
int height_of(int size, int arity) {
  int height = 0;
  for (Range range{0, size}; range.count > 1; range = child_range(range, arity, 0)) ++height;
  return height;
}

template <typename F>
void for_each_child(Range subtree, int arity, F f) {
  for (int child = 0; child < arity; ++child) {
    const Range range = child_range(subtree, arity, child);
    if (range.count > 0) f(range);
  }
}

// A rank at depth d sends in step height - d, when all below it is done; its children did so in the step before.
void reduce_up(Builder& plan, const Position& me, int arity, int height, Region result) {
  plan.go_to_step(height - me.depth - 1);
  for_each_child(me.subtree, arity, [&](Range child) { plan.receive_fold(child.first, result, FoldOrder::own_lower); });
  plan.go_to_step(height - me.depth);
  if (me.depth > 0) plan.send(me.parent, result);
  if (me.depth == 0) plan.divide(result);
}

// The same with contributions that stay apart until the root folds them.
void collect_up(Builder& plan, const Position& me, int arity, int height, Region result) {
  const auto contributions = [&](Range range) {
    return scratch(
        {static_cast<std::size_t>(range.first) * plan.length(), static_cast<std::size_t>(range.count) * plan.length()});
  };
  plan.keep_contribution();
  plan.go_to_step(height - me.depth - 1);
  for_each_child(me.subtree, arity, [&](Range child) { plan.receive(child.first, contributions(child)); });
  plan.go_to_step(height - me.depth);
  if (me.depth > 0) plan.send(me.parent, contributions(me.subtree));
  if (me.depth == 0) plan.fold_all(result, plan.whole());
}

// A rank at depth d receives in step d - 1 from `first_step` on, and sends in the next.
void send_down(Builder& plan, const Position& me, int arity, int first_step, int root) {
  const auto actual = [&](int relative) { return (relative + root) % plan.size(); };
  if (me.depth > 0) {
    plan.go_to_step(first_step + me.depth - 1);
    plan.receive(actual(me.parent), destination(plan.whole()));
  }
  plan.go_to_step(first_step + me.depth);
  for_each_child(me.subtree, arity, [&](Range child) { plan.send(actual(child.first), destination(plan.whole())); });
}

// Where the reduction of what lies below a rank takes shape. A reduce leaves the data of all but its root alone.
Region place_of_result(Builder& plan, const PlanRequest& request, const Position& me) {
  if (request.call == CallKind::all_reduce || request.rank == request.root) return destination(plan.whole());
  if (request.reproducible) return plan.contribution(plan.rank(), plan.whole());
  if (me.subtree.count == 1) return source(plan.whole());
  plan.need_scratch(plan.length());
  plan.copy(scratch(plan.whole()), source(plan.whole()));
  return scratch(plan.whole());
}

}  // namespace

void tree(Builder& plan, const PlanRequest& request, int wanted_arity) {
  const int arity = std::min(wanted_arity, plan.size());
  const int height = height_of(plan.size(), arity);
  if (request.call == CallKind::broadcast) {
    const int root = request.root.value;
    const int relative = (plan.rank() - root + plan.size()) % plan.size();
    return send_down(plan, find_position(relative, plan.size(), arity), arity, 0, root);
  }

  const Position me = find_position(plan.rank(), plan.size(), arity);
  const Region result = place_of_result(plan, request, me);
  (request.reproducible ? collect_up : reduce_up)(plan, me, arity, height, result);
  if (request.call == CallKind::all_reduce) return send_down(plan, me, arity, height, 0);
  if (request.root == Rank{0}) return;
  plan.go_to_step(height);
  if (plan.rank() == 0) plan.send(request.root.value, result);
  if (request.rank == request.root) plan.receive(0, destination(plan.whole()));
}

}  // namespace tutti::plans
