#include <tutti/collective/plan.hpp>

#include <tutti/base/assert.hpp>

#include "plans/builder.hpp"

namespace tutti {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

std::string_view to_string(CallKind call) {
  switch (call) {
    case CallKind::all_reduce: return "all_reduce";
    case CallKind::reduce: return "reduce";
    case CallKind::broadcast: return "broadcast";
    case CallKind::all_gather: return "all_gather";
    case CallKind::reduce_scatter: return "reduce_scatter";
    case CallKind::gather: return "gather";
    case CallKind::scatter: return "scatter";
    case CallKind::all_to_all: return "all_to_all";
    case CallKind::barrier: break;
  }
  return "barrier";
}

void Plan::clear() {
  actions.clear();
  scratch_length = 0;
}

void make_plan(const PlanRequest& request, Plan& plan) {
  plan.clear();
  plans::Builder builder(request, plan);
  switch (request.call) {
    case CallKind::barrier: return;
    case CallKind::gather:
    case CallKind::scatter:
    case CallKind::all_to_all: return plans::linear(builder, request);
    case CallKind::all_gather:
    case CallKind::reduce_scatter: return plans::ring(builder, request);
    case CallKind::all_reduce:
    case CallKind::reduce:
    case CallKind::broadcast: break;
  }
  if (request.size == 1) return;
  std::visit(
      Overloaded{
          [&](const Centralized&) { plans::centralized(builder, request); },
          [&](const Tree& tree) { plans::tree(builder, request, tree.arity); },
          [&](const Ring&) { plans::ring(builder, request); },
          [&](const RecursiveDoubling&) { plans::recursive_doubling(builder, request); },
          [&](const HalvingDoubling&) { plans::halving_doubling(builder, request); },
          [&](const auto& other) { TUTTI_ASSERT_EQ(to_string(AllReduceStrategy(other)), "an algorithm with a plan"); },
      },
      request.algorithm);
}

PlanCount count(const Plan& plan) {
  PlanCount result;
  int last_step = -1;
  for (const Action& action : plan.actions) {
    const bool sends = action.kind == ActionKind::send;
    const bool receives = action.kind == ActionKind::receive || action.kind == ActionKind::receive_fold;
    if (!sends && !receives) continue;
    if (action.step != last_step) ++result.steps;
    last_step = action.step;
    if (sends) {
      ++result.messages_sent;
      result.elements_sent += action.region.slice.count;
    } else {
      result.elements_received += action.region.slice.count;
    }
  }
  return result;
}

}  // namespace tutti
