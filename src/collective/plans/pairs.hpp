// Ranks for algorithms that want a power of two of them. With p ranks and P the largest power of two not above p, the
// first 2(p-P) ranks form pairs: the odd one hands its array to the even one below it beforehand and gets the result
// afterwards. The P that remain are numbered in order, so that each stands for a contiguous range of ranks.
#pragma once

#include <bit>

#include "builder.hpp"

namespace tutti::plans {

struct Pairs {
  explicit Pairs(int ranks)
      : count(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), extra(ranks - count) {}

  int log2() const { return std::countr_zero(static_cast<unsigned>(count)); }
  bool hands_over(int rank) const { return rank < 2 * extra && rank % 2 == 1; }
  bool takes_over(int rank) const { return rank < 2 * extra && rank % 2 == 0; }
  // Of a rank that does not hand over.
  int number_of(int rank) const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  // The first rank that `number` stands for; those up to first_rank(number + 1) are its range.
  int first_rank(int number) const { return number < extra ? 2 * number : number + extra; }

  // In step 0, and in one more after `steps` steps of the algorithm proper. `enter` is false for a rank that hands
  // over, whose part in the call ends with it.
  bool enter(Builder& plan, bool reproducible, int steps) const;
  void leave(Builder& plan) const;

  int count;
  int extra;
};

inline bool Pairs::enter(Builder& plan, bool reproducible, int steps) const {
  const int rank = plan.rank();
  if (hands_over(rank)) {
    plan.send(rank - 1, destination(plan.whole()));
    plan.go_to_step(1 + steps);
    plan.receive(rank - 1, destination(plan.whole()));
    return false;
  }
  if (reproducible) plan.keep_contribution();
  if (takes_over(rank)) {
    if (reproducible) {
      plan.receive(rank + 1, plan.contribution(rank + 1, plan.whole()));
    } else {
      plan.receive_fold(rank + 1, destination(plan.whole()), FoldOrder::own_lower);
    }
  }
  if (extra > 0) plan.next_step();
  return true;
}

inline void Pairs::leave(Builder& plan) const {
  if (takes_over(plan.rank())) plan.send(plan.rank() + 1, destination(plan.whole()));
}

}  // namespace tutti::plans
