// The array is cut into one chunk per rank (base/chunk.hpp). In step t of the reducing half, rank r sends chunk r-1-t
// to r+1 and folds chunk r-2-t, which comes from r-1, into its own: chunk c starts at rank c+1, passes everybody, and
// is complete at its owner, rank c. In step t of the gathering half, rank r sends chunk r-t on and receives r-1-t. All
// numbers are modulo the number of ranks; chunks may be empty.
//
// A reduce ends with every owner sending its chunk to the root; a broadcast begins with the root sending every owner
// its chunk, and counts ranks from the root.
#include "builder.hpp"

namespace tutti::plans {
namespace {

int modulo(int value, int size) { return ((value % size) + size) % size; }

// How rank `rank` folds chunk `c`, which has gone from rank c+1 up and, unless it is the last, past the last rank to 0.
FoldOrder order_of(int rank, int c, int size) {
  const bool wrapped = rank <= c && c != size - 1;
  if (!wrapped) return FoldOrder::incoming_lower;
  if (rank == 0) return c == 0 ? FoldOrder::own_lower : FoldOrder::wrap_enter;
  return rank == c ? FoldOrder::wrap_leave : FoldOrder::wrap_within;
}

// Leaves rank r's chunk r reduced in `work`.
void reduce_chunks(Builder& plan, Memory work) {
  const int rank = plan.rank();
  const int size = plan.size();
  for (int t = 0; t < size - 1; ++t) {
    const int outgoing = modulo(rank - 1 - t, size);
    const int incoming = modulo(rank - 2 - t, size);
    plan.send(modulo(rank + 1, size), {work, plan.chunk_of(outgoing)});
    plan.receive_fold(modulo(rank - 1, size), {work, plan.chunk_of(incoming)}, order_of(rank, incoming, size));
    plan.next_step();
  }
  plan.divide({work, plan.chunk_of(rank)});
}

// The same with contributions that stay apart: whoever a chunk passes adds its own to the train.
void collect_chunks(Builder& plan, Region result) {
  const int rank = plan.rank();
  const int size = plan.size();
  plan.keep_contribution();
  for (int t = 0; t < size - 1; ++t) {
    const int outgoing = modulo(rank - 1 - t, size);
    const int incoming = modulo(rank - 2 - t, size);
    for (int i = 0; i <= t; ++i) {
      plan.send(modulo(rank + 1, size), plan.contribution(modulo(rank - i, size), plan.chunk_of(outgoing)));
    }
    for (int i = 0; i <= t; ++i) {
      plan.receive(modulo(rank - 1, size), plan.contribution(modulo(rank - 1 - i, size), plan.chunk_of(incoming)));
    }
    plan.next_step();
  }
  plan.fold_all(result, plan.chunk_of(rank));
}

// Rank r starts with part r of the destination, counted from `root`, and ends with all.
template <typename Part>
void gather_parts(Builder& plan, int root, bool root_has_all, Part part) {
  const int size = plan.size();
  const int rank = modulo(plan.rank() - root, size);
  const int right = modulo(rank + 1, size);
  for (int t = 0; t < size - 1; ++t) {
    if (right != 0 || !root_has_all) {
      plan.send(modulo(right + root, size), destination(part(modulo(rank - t, size))));
    }
    if (rank != 0 || !root_has_all) {
      plan.receive(modulo(rank - 1 + root, size), destination(part(modulo(rank - 1 - t, size))));
    }
    plan.next_step();
  }
}

void reduce_scatter(Builder& plan, bool reproducible) {
  const Slice mine = plan.chunk_of(plan.rank());
  const Region result = destination({0, mine.count});
  if (reproducible) return collect_chunks(plan, result);
  plan.need_scratch(plan.length());
  plan.copy(scratch(plan.whole()), source(plan.whole()));
  reduce_chunks(plan, Memory::scratch);
  plan.copy(result, scratch(mine));
}

void reduce(Builder& plan, const PlanRequest& request) {
  const int root = request.root.value;
  const Slice mine = plan.chunk_of(plan.rank());
  Region result = destination(mine);
  if (request.reproducible) {
    if (plan.rank() != root) result = plan.contribution(plan.rank(), mine);
    collect_chunks(plan, result);
  } else {
    if (plan.rank() != root) {
      result = scratch(mine);
      plan.need_scratch(plan.length());
      plan.copy(scratch(plan.whole()), source(plan.whole()));
    }
    reduce_chunks(plan, result.memory);
  }
  if (plan.rank() != root) return plan.send(root, result);
  for (int owner = 0; owner < plan.size(); ++owner) {
    if (owner != root) plan.receive(owner, destination(plan.chunk_of(owner)));
  }
}

void broadcast(Builder& plan, int root) {
  const int size = plan.size();
  if (plan.rank() == root) {
    for (int relative = 1; relative < size; ++relative) {
      plan.send(modulo(relative + root, size), destination(plan.chunk_of(relative)));
    }
  } else {
    plan.receive(root, destination(plan.chunk_of(modulo(plan.rank() - root, size))));
  }
  plan.next_step();
  gather_parts(plan, root, /*root_has_all=*/true, [&](int index) { return plan.chunk_of(index); });
}

void all_gather(Builder& plan) {
  const auto part = [&](int index) { return Slice{static_cast<std::size_t>(index) * plan.length(), plan.length()}; };
  plan.copy(destination(part(plan.rank())), source(plan.whole()));
  gather_parts(plan, 0, /*root_has_all=*/false, part);
}

void all_reduce(Builder& plan, bool reproducible) {
  if (reproducible) {
    collect_chunks(plan, destination(plan.chunk_of(plan.rank())));
  } else {
    reduce_chunks(plan, Memory::destination);
  }
  gather_parts(plan, 0, /*root_has_all=*/false, [&](int index) { return plan.chunk_of(index); });
}

}  // namespace

void ring(Builder& plan, const PlanRequest& request) {
  switch (request.call) {
    case CallKind::reduce_scatter: return reduce_scatter(plan, request.reproducible);
    case CallKind::reduce: return reduce(plan, request);
    case CallKind::broadcast: return broadcast(plan, request.root.value);
    case CallKind::all_gather: return all_gather(plan);
    default: return all_reduce(plan, request.reproducible);
  }
}

}  // namespace tutti::plans
