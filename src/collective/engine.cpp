#include "engine.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>
#include <tutti/collective/auto.hpp>
#include <tutti/transport/engine_calls.hpp>

namespace tutti::detail {
namespace {

// Above every plan's own steps.
constexpr int kAgreementStep = 1 << 19;
// From here on a tree's logarithm is worth less than a ring's bandwidth, for reduce and broadcast by messages.
constexpr std::size_t kRingFromBytes = 64 * 1024;

WorldShape shape_of(Transport& transport) {
  Locality far = Locality::same_address_space;
  for (Rank peer : all_ranks(transport.size())) far = std::max(far, transport.locality(peer));
  return {.ranks = transport.size(), .locality = far, .shared_memory = transport.shared_board() != nullptr};
}

std::size_t bytes_of(const Descriptor& descriptor) { return descriptor.length * size_of(descriptor.type); }

constexpr std::string_view kBroken = "; the communicator is broken";

// A chain of ranks that wait for each other ends at the one to blame.
Rank far_end(const Transport& transport, Rank suspect) {
  Rank rank = suspect;
  for (int i = 0; i < transport.size(); ++i) {
    const Rank next = transport.held_up_by(rank);
    if (next == rank) return rank;
    rank = next;
  }
  return suspect;  // they wait in a circle
}

}  // namespace

bool Operation::ready() {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Operation::wait() {
  std::unique_lock lock(mutex_);
  // The call has a deadline of its own.
  changed_.wait(lock, [&] { return done_; });
  const std::exception_ptr error = std::exchange(error_, nullptr);
  lock.unlock();
  in_use_.store(false);
  if (error) std::rethrow_exception(error);
}

void Operation::abandon() {
  std::unique_lock lock(mutex_);
  if (!done_) {
    const Rank rank = engine_->transport().rank();
    engine_->abort({FailureKind::cancelled,
                    {rank},
                    fmt::format("{} {} was abandoned by {}; the communicator is broken",
                                to_string(call_.descriptor.call), call_.descriptor.sequence, to_string(rank))});
    changed_.wait(lock, [&] { return done_; });
  }
  error_ = nullptr;
  lock.unlock();
  in_use_.store(false);
}

class CallEngine::Use {
 public:
  explicit Use(CallEngine& engine) : engine_(engine) {
    if (engine_.in_use_.exchange(true)) throw UsageError("a communicator is used by two threads at once");
  }
  ~Use() { engine_.in_use_.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  CallEngine& engine_;
};

CallEngine::CallEngine(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      board_(transport_->shared_board()),
      shape_(shape_of(*transport_)),
      descriptors_(static_cast<std::size_t>(transport_->size())),
      known_(static_cast<std::size_t>(transport_->size())) {}

CallEngine::~CallEngine() {
  if (!progress_thread_.joinable()) return;
  if (outstanding_.load() > 0) {
    const Rank rank = transport_->rank();
    abort({FailureKind::cancelled,
           {rank},
           fmt::format("{} left calls that it had started; the communicator is broken", to_string(rank))});
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_one();
  progress_thread_.join();
}

void CallEngine::run(Call& call) {
  const Use use(*this);
  call.descriptor.sequence = ++sequence_;
  refuse_misuse(call);
  if (outstanding_.load() > 0) return enqueue(call)->wait();
  carry_out(call, Deadline::after(call.deadline.value_or(options_.deadline)));
}

std::shared_ptr<Operation> CallEngine::start(Call& call) {
  const Use use(*this);
  call.descriptor.sequence = ++sequence_;
  refuse_misuse(call);
  return enqueue(call);
}

// The caller hears at once. Its peers, who may have brought the right thing, hear it where they agree with this rank,
// which it does in the background; and the next call works.
void CallEngine::refuse_misuse(Call& call) {
  if (call.descriptor.misuse == Misuse::none) return;
  const std::string why = call.misuse;
  const std::shared_ptr<Operation> told = enqueue(call);
  told->in_use_.store(false);
  throw UsageError(fmt::format("{}: {}", to_string(call.descriptor.call), why));
}

// Whatever can fail comes first: a call that was counted must be carried out, or the ranks fall out of step.
std::shared_ptr<Operation> CallEngine::enqueue(const Call& call) try {
  if (!progress_thread_.joinable()) progress_thread_ = std::thread([this] { progress(); });
  auto found = std::ranges::find_if(operations_, [](const auto& operation) {
    if (operation->in_use_.load()) return false;
    const std::lock_guard lock(operation->mutex_);
    return operation->done_;
  });
  if (found == operations_.end()) found = operations_.insert(found, std::make_shared<Operation>());
  std::shared_ptr<Operation> operation = *found;
  {
    const std::lock_guard lock(operation->mutex_);
    operation->engine_ = this;
    operation->call_ = call;
    operation->deadline_ = Deadline::after(call.deadline.value_or(options_.deadline));
    operation->done_ = false;
    operation->error_ = nullptr;
    operation->in_use_.store(true);
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    outstanding_.fetch_add(1);
  }
  queued_.notify_one();
  return operation;
} catch (const std::exception& error) {
  give_up(call, error.what());
  throw;
}

void CallEngine::progress() {
  for (;;) {
    std::shared_ptr<Operation> operation;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.erase(queue_.begin());
    }
    std::exception_ptr error;
    try {
      carry_out(operation->call_, operation->deadline_);
    } catch (...) {
      error = std::current_exception();
    }
    // Before the waiter goes on, so that its next call finds nothing outstanding.
    outstanding_.fetch_sub(1);
    const std::lock_guard lock(operation->mutex_);
    operation->error_ = error;
    operation->done_ = true;
    operation->changed_.notify_all();
  }
}

AllReduceStrategy CallEngine::resolve(const Descriptor& descriptor) const {
  const AllReduceStrategy named = algorithm_of(descriptor);
  if (!std::holds_alternative<Auto>(named)) return named;
  if (board_ != nullptr) return SharedSlices{};
  switch (descriptor.call) {
    case CallKind::all_reduce: return choose_all_reduce(Bytes{bytes_of(descriptor)}, shape_);
    case CallKind::reduce:
    case CallKind::broadcast:
      if (bytes_of(descriptor) < kRingFromBytes) return Tree{};
      return Ring{};
    default: return Ring{};  // of no account: these calls have one way each
  }
}

void CallEngine::tell(const Call& call, std::string_view algorithm, int step) const {
  if (!options_.on_step) return;
  try {
    options_.on_step({to_string(call.descriptor.call), algorithm, call.descriptor.sequence, step});
  } catch (...) {
    observer_threw_ = true;
    throw;
  }
}

void CallEngine::fail(const Call& call, const Failure& failure) {
  if (!transport_->failure()) {
    Failure told = failure;
    if (told.kind == FailureKind::late) {
      std::set<Rank> ends;
      for (Rank rank : told.ranks) ends.insert(far_end(*transport_, rank));
      const std::vector<Rank> blamed(ends.begin(), ends.end());
      if (blamed != told.ranks) told.message += fmt::format(", held up by {}", to_string(blamed));
      told.ranks = blamed;
    }
    told.message =
        fmt::format("{} {}: {}{}", to_string(call.descriptor.call), call.descriptor.sequence, told.message, kBroken);
    transport_->abort(std::move(told));
  }
  if (board_ != nullptr) board_->give_up();
  Failure told = *transport_->failure();
  // A transport that notices by itself does not know of calls.
  if (!told.message.ends_with(kBroken)) {
    told.message =
        fmt::format("{} {}: {}{}", to_string(call.descriptor.call), call.descriptor.sequence, told.message, kBroken);
  }
  throw PeerError(std::move(told));
}

void CallEngine::give_up(const Call& call, std::string_view why) noexcept {
  const Rank rank = transport_->rank();
  transport_->abort({FailureKind::lost,
                     {rank},
                     fmt::format("{} {}: {} gave up: {}{}", to_string(call.descriptor.call), call.descriptor.sequence,
                                 to_string(rank), why, kBroken)});
  if (board_ != nullptr) board_->give_up();
}

void CallEngine::carry_out(Call& call, Deadline deadline) {
  if (auto failure = transport_->failure()) {
    failure->message = "the communicator is broken since " + failure->message;
    throw PeerError(std::move(*failure));
  }
  observer_threw_ = false;
  std::optional<Failure> disagreement;
  try {
    disagreement = perform(call, deadline);
  } catch (const PeerError& error) {
    // An observer may have met with a failure of its own, in another world.
    if (!observer_threw_) fail(call, error.failure());
    give_up(call, error.what());
    throw;
  } catch (const std::exception& error) {
    give_up(call, error.what());
    throw;
  } catch (...) {
    give_up(call, "an exception of its own");
    throw;
  }
  if (disagreement) throw PeerError(std::move(*disagreement));
}

std::optional<Failure> CallEngine::perform(Call& call, Deadline deadline) {
  Descriptor& descriptor = call.descriptor;
  const AllReduceStrategy algorithm = resolve(descriptor);
  const bool shared = board_ != nullptr && std::holds_alternative<SharedSlices>(algorithm);
  // A short array goes onto the board itself: everybody folds all of it, and meets only once.
  const bool in_slots = shared && descriptor.call == CallKind::all_reduce && descriptor.misuse == Misuse::none &&
                        bytes_of(descriptor) <= SharedBoard::kSlotBytes;

  tell(call, "agreement", 0);
  std::span<const Descriptor> everybody;
  if (board_ != nullptr) {
    BoardEntry entry{.source = call.source.data(), .destination = call.destination.data()};
    static_assert(sizeof descriptor <= sizeof entry.note);
    std::memcpy(entry.note.data(), &descriptor, sizeof descriptor);
    if (in_slots && call.source.bytes() > 0) {
      std::memcpy(board_->next_slot().data(), call.source.data(), call.source.bytes());
    }
    if (shared && !in_slots && !board_->addressable() && descriptor.misuse == Misuse::none) give_first_block(call);
    board_->enter(entry, deadline);
    for (Rank rank : all_ranks(transport_->size())) {
      std::memcpy(&descriptors_[static_cast<std::size_t>(rank.value)], board_->entry(rank).note.data(),
                  sizeof descriptor);
    }
    everybody = descriptors_;
  } else {
    everybody = agree_by_messages(descriptor, deadline);
  }

  if (auto disagreement = find_disagreement(everybody)) return disagreement;
  const Rank root = root_of(everybody);
  if (shared && !in_slots && !board_->addressable()) {
    perform_staged(call, root, deadline);
  } else if (shared) {
    perform_shared(call, root, in_slots, deadline);
  } else if (is_of_engine(algorithm)) {
    perform_by_engine(call, deadline);
  } else {
    perform_by_plan(call, root, algorithm, deadline);
  }
  return std::nullopt;
}

// Everybody's descriptor to everybody, in ceil(log2 p) steps whose partners do not depend on what the call is: ranks
// that disagree may have plans that never meet (two roots that both wait to receive). In the step of distance d, rank r
// hands what it knows of r, r-1, ..., r-d+1 to r+d.
std::span<const Descriptor> CallEngine::agree_by_messages(const Descriptor& mine, Deadline deadline) {
  const int size = transport_->size();
  const int rank = transport_->rank().value;
  known_[0] = mine;  // known_[i] is rank - i's
  int step = kAgreementStep;
  for (int distance = 1; distance < size; distance *= 2, ++step) {
    const auto count = static_cast<std::size_t>(std::min(distance, size - distance));
    const Tag tag = tag_of(mine.sequence, step);
    Outbox outbox(agreement_tickets_);
    outbox.send(*transport_, Rank{(rank + distance) % size}, tag, std::as_bytes(std::span(known_).first(count)));
    {
      const Delivery delivery = transport_->receive(Rank{(rank - distance + size) % size}, tag, deadline);
      delivery.copy_to(std::as_writable_bytes(std::span(known_).subspan(static_cast<std::size_t>(distance), count)));
    }  // let go of before we wait for others to do the same
    outbox.settle(deadline);
  }
  for (int back = 0; back < size; ++back) {
    descriptors_[static_cast<std::size_t>((rank - back + size) % size)] = known_[static_cast<std::size_t>(back)];
  }
  return descriptors_;
}

void CallEngine::perform_by_engine(const Call& call, Deadline deadline) {
  const Descriptor& descriptor = call.descriptor;
  tell(call, to_string(algorithm_of(descriptor)), 0);
  if (transport_->size() == 1 || descriptor.length == 0) return;
  const bool mean = descriptor.op == ReduceOp::mean;
  const auto failed = [this] { return transport_->failure().has_value(); };
  try {
    transport_->engine_calls()->all_reduce(call.destination, mean ? ReduceOp::sum : descriptor.op, failed, deadline);
  } catch (const PeerError&) {
    // The engine cannot tell who it was that it lost; the transport will in a moment.
    const Deadline moment = Deadline::after(std::chrono::seconds(1));
    while (!failed() && !moment.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw;
  }
  if (mean) divide(descriptor.type, call.destination.data(), descriptor.length, transport_->size());
}

void CallEngine::perform_by_plan(const Call& call, Rank root, const AllReduceStrategy& algorithm, Deadline deadline) {
  const Descriptor& descriptor = call.descriptor;
  make_plan({.call = descriptor.call,
             .algorithm = algorithm,
             .rank = transport_->rank(),
             .size = transport_->size(),
             .length = descriptor.length,
             .root = root,
             .reproducible = descriptor.reproducible != 0},
            plan_);
  std::function<void(int)> before_step;
  if (options_.on_step) {
    before_step = [&](int step) { tell(call, to_string(algorithm), step); };
  }
  executor_.execute(*transport_, {.plan = plan_,
                                  .source = call.source,
                                  .destination = call.destination,
                                  .type = descriptor.type,
                                  .op = descriptor.op,
                                  .sequence = descriptor.sequence,
                                  .deadline = deadline,
                                  .before_step = before_step});
}

}  // namespace tutti::detail
