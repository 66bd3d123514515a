// What the plan functions are written in. Empty slices are left out: every rank knows that they are empty.
#pragma once

#include <algorithm>

#include <tutti/collective/plan.hpp>

namespace tutti::plans {

class Builder {
 public:
  Builder(const PlanRequest& request, Plan& plan) : request_(request), plan_(plan) {}

  int rank() const { return request_.rank.value; }
  int size() const { return request_.size; }
  std::size_t length() const { return request_.length; }
  Slice whole() const { return {0, request_.length}; }
  Slice chunk_of(int index) const { return chunk(request_.length, request_.size, index); }
  // The place of rank `contributor`'s contribution to `slice`, in the scratch.
  Region contribution(int contributor, Slice slice) const {
    return {Memory::scratch, {static_cast<std::size_t>(contributor) * request_.length + slice.first, slice.count}};
  }

  void next_step() { ++step_; }
  void go_to_step(int step) { step_ = std::max(step_, step); }
  void need_scratch(std::size_t length) { plan_.scratch_length = std::max(plan_.scratch_length, length); }

  void send(int peer, Region region) { add({step_, ActionKind::send, Rank{peer}, region}); }
  void receive(int peer, Region region) { add({step_, ActionKind::receive, Rank{peer}, region}); }
  void receive_fold(int peer, Region region, FoldOrder order) {
    add({step_, ActionKind::receive_fold, Rank{peer}, region, {}, order});
  }
  void settle() { plan_.actions.push_back({step_, ActionKind::settle}); }
  void copy(Region to, Region from) { add({step_, ActionKind::copy, {}, to, from}); }
  void fold(Region into, Region with, FoldOrder order) { add({step_, ActionKind::fold, {}, into, with, order}); }
  void fold_all(Region into, Slice contributions) {
    add({step_, ActionKind::fold_all, {}, into, {Memory::scratch, contributions}});
  }
  void divide(Region region) { add({step_, ActionKind::divide, {}, region}); }

  // In reproducible mode: lays this rank's own contribution beside where the others' will come.
  void keep_contribution() {
    need_scratch(static_cast<std::size_t>(size()) * length());
    copy(contribution(rank(), whole()), {Memory::source, whole()});
  }

 private:
  void add(const Action& action) {
    if (!action.region.slice.empty()) plan_.actions.push_back(action);
  }

  const PlanRequest& request_;
  Plan& plan_;
  int step_ = 0;
};

inline Region destination(Slice slice) { return {Memory::destination, slice}; }
inline Region source(Slice slice) { return {Memory::source, slice}; }
inline Region scratch(Slice slice) { return {Memory::scratch, slice}; }

// One function per algorithm; each leaf file tells its own.
void centralized(Builder& plan, const PlanRequest& request);
void tree(Builder& plan, const PlanRequest& request, int arity);
void ring(Builder& plan, const PlanRequest& request);
void recursive_doubling(Builder& plan, const PlanRequest& request);
void halving_doubling(Builder& plan, const PlanRequest& request);
void linear(Builder& plan, const PlanRequest& request);

}  // namespace tutti::plans
