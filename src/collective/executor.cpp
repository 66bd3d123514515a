#include "executor.hpp"

#include <algorithm>
#include <cstring>

#include <tutti/base/assert.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti::detail {
namespace {

constexpr int kStepBits = 20;

// One call under way.
class Run {
 public:
  Run(Transport& transport, const Execution& execution, std::byte* scratch, std::vector<SendTicket>& tickets,
      std::vector<const void*>& sources)
      : transport_(transport),
        execution_(execution),
        type_(execution.type),
        scratch_(scratch),
        outbox_(tickets),
        sources_(sources) {}

  void all() {
    int step = -1;
    for (const Action& action : execution_.plan.actions) {
      if (action.step != step) {
        outbox_.settle(execution_.deadline);
        step = action.step;
        if (execution_.before_step) execution_.before_step(step);
        expect_until(step + 1);
      }
      one(action);
    }
    outbox_.settle(execution_.deadline);
  }

 private:
  // Says which long messages come up to that step, so that they do not wait for us to ask.
  void expect_until(int step) {
    const std::vector<Action>& actions = execution_.plan.actions;
    for (; expected_ < actions.size() && actions[expected_].step <= step; ++expected_) {
      const Action& action = actions[expected_];
      const bool receives = action.kind == ActionKind::receive || action.kind == ActionKind::receive_fold;
      if (receives && bytes(action.region.slice.count) > kEagerBytes) {
        transport_.expect(action.peer, tag_of(execution_.sequence, action.step));
      }
    }
  }

  void one(const Action& action) {
    const Tag tag = tag_of(execution_.sequence, action.step);
    const Slice slice = action.region.slice;
    switch (action.kind) {
      case ActionKind::send:
        return outbox_.send(transport_, action.peer, tag, {readable(action.region), bytes(slice.count)});
      case ActionKind::receive: {
        const Delivery delivery = receive(action, tag);
        return delivery.copy_to({writable(action.region), bytes(slice.count)});
      }
      case ActionKind::receive_fold: return receive_fold(action, tag);
      case ActionKind::settle: return outbox_.settle(execution_.deadline);
      case ActionKind::copy: {
        std::byte* to = writable(action.region);
        const std::byte* from = readable(action.other);
        if (to != from) std::memcpy(to, from, bytes(slice.count));
        return;
      }
      case ActionKind::fold: return fold_in(action, writable(action.region), readable(action.other), slice.count);
      case ActionKind::fold_all: return fold_contributions(action);
      case ActionKind::divide:
        if (execution_.op == ReduceOp::mean) {
          divide(type_, writable(action.region), slice.count, transport_.size());
        }
        return;
    }
  }

  Delivery receive(const Action& action, Tag tag) {
    Delivery delivery = transport_.receive(action.peer, tag, execution_.deadline);
    TUTTI_ASSERT_EQ(delivery.header().length, bytes(action.region.slice.count));
    return delivery;
  }

  // Straight out of where the payload lies, piece by piece as it comes.
  void receive_fold(const Action& action, Tag tag) {
    const Delivery delivery = receive(action, tag);
    delivery.read([this, &action](std::size_t offset, std::span<const std::byte> piece) {
      fold_in(action, writable(action.region) + offset, piece.data(), piece.size() / size_of(type_));
    });
  }

  void fold_in(const Action& action, std::byte* own, const std::byte* incoming, std::size_t length) {
    const ReduceOp op = execution_.op;
    switch (action.order) {
      case FoldOrder::incoming_lower: return fold(op, type_, own, incoming, own, length);
      case FoldOrder::own_lower: return fold(op, type_, own, own, incoming, length);
      case FoldOrder::wrap_enter: return fold_wrapped(op, type_, own, own, incoming, length, WrapPhase::enter);
      case FoldOrder::wrap_within: return fold_wrapped(op, type_, own, own, incoming, length, WrapPhase::within);
      case FoldOrder::wrap_leave: return fold_wrapped(op, type_, own, own, incoming, length, WrapPhase::leave);
    }
  }

  void fold_contributions(const Action& action) {
    const Slice slice = action.other.slice;
    const std::size_t contributions = execution_.plan.scratch_length / static_cast<std::size_t>(transport_.size());
    sources_.clear();
    for (Rank rank : all_ranks(transport_.size())) {
      sources_.push_back(scratch_ + bytes(static_cast<std::size_t>(rank.value) * contributions + slice.first));
    }
    void* destination = writable(action.region);
    fold_all(execution_.op, type_, sources_, {&destination, 1}, slice.count);
  }

  std::size_t bytes(std::size_t elements) const { return elements * size_of(type_); }

  const std::byte* readable(const Region& region) const {
    if (region.memory == Memory::source) return execution_.source.data() + bytes(region.slice.first);
    return writable(region);
  }

  std::byte* writable(const Region& region) const {
    TUTTI_ASSERT(region.memory != Memory::source);
    std::byte* base = region.memory == Memory::scratch ? scratch_ : execution_.destination.data();
    return base + bytes(region.slice.first);
  }

  Transport& transport_;
  const Execution& execution_;
  const DataType type_;
  std::byte* const scratch_;
  Outbox outbox_;
  std::vector<const void*>& sources_;
  std::size_t expected_ = 0;  // actions that were looked at for that
};

}  // namespace

Tag tag_of(std::uint64_t sequence, int step) {
  TUTTI_ASSERT_LT(step, 1 << kStepBits);
  return {kFirstInternalTag | (sequence << kStepBits) | static_cast<std::uint64_t>(step)};
}

void Outbox::send(Transport& transport, Rank to, Tag tag, std::span<const std::byte> payload) {
  transport_ = &transport;
  // Room first: a message that was started must not be forgotten.
  if (tickets_.size() == tickets_.capacity()) tickets_.reserve(std::max<std::size_t>(8, 2 * tickets_.capacity()));
  tickets_.push_back(transport.start_send(to, tag, payload));
}

void Outbox::settle(Deadline deadline) {
  while (!tickets_.empty()) {
    const SendTicket ticket = tickets_.back();
    tickets_.pop_back();
    transport_->finish_send(ticket, deadline);
  }
}

void Outbox::cancel() noexcept {
  while (!tickets_.empty()) {
    transport_->cancel_send(tickets_.back());
    tickets_.pop_back();
  }
}

void Executor::execute(Transport& transport, const Execution& execution) {
  std::byte* scratch = scratch_.at_least(execution.plan.scratch_length * size_of(execution.type));
  Run(transport, execution, scratch, tickets_, sources_).all();
}

}  // namespace tutti::detail
