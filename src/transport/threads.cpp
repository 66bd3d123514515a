#include <tutti/transport/threads.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>

#include "threads_world.hpp"

namespace tutti {
namespace threads {
namespace {

class Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<World> world, Rank rank)
      : world_(std::move(world)), rank_(rank), place_(world_->place(rank)), board_(*world_, rank) {}

  ~Endpoint() override { world_->depart(rank_, "has left", /*from_descendants=*/false); }

  Rank rank() const override { return rank_; }
  int size() const override { return world_->size(); }

  Locality locality(Rank peer) const override {
    check(peer);
    return world_->shared_memory || peer == rank_ ? Locality::same_address_space : Locality::same_host;
  }

  SendTicket start_send(Rank to, Tag tag, std::span<const std::byte> payload) override {
    check(to);
    Place& receiver = world_->place(to);
    std::uint64_t id = 0;
    {
      const std::lock_guard lock(receiver.mailbox.mutex);
      Message& message = receiver.mailbox.obtain();
      message.header = {tag, payload.size()};
      // As processes do, so that whoever reads is used to pieces.
      message.most_per_piece = world_->shared_memory ? payload.size() : kEagerBytes;
      message.sender = &place_;
      message.receiver = &receiver;
      message.queued = message.held_by_sender = message.held_by_receiver = true;
      // To itself too: a rank could not read and finish at the same time.
      const bool eager = payload.size() <= kEagerBytes || to == rank_;
      if (eager) message.copy.assign(payload.begin(), payload.end());
      message.payload = eager ? message.copy.data() : payload.data();
      message.done.store(eager);
      queue_to(receiver).append(&message);
      id = message.id;
    }
    receiver.mailbox.arrivals.fetch_add(1);
    receiver.doorbell.ring();
    return {to, id};
  }

  void finish_send(SendTicket ticket, Deadline deadline) override {
    Place& receiver = world_->place(ticket.to);
    Message& message = message_of(ticket);
    const auto ready = [&] { return message.done.load() || world_->aborted.load() || receiver.gone.load(); };
    stop_telling();
    const bool in_time = ready() || wait_for(ticket.to, ready, deadline);
    const bool was_read = !let_go(message);
    if (world_->aborted.load()) world_->throw_failure();
    if (!in_time) {
      throw PeerError(
          {FailureKind::late, {ticket.to}, fmt::format("{} did not receive a message in time", to_string(ticket.to))});
    }
    if (!was_read) throw PeerError(world_->lost({ticket.to}));
  }

  void cancel_send(SendTicket ticket) noexcept override { let_go(message_of(ticket), /*take_back=*/true); }

  Delivery receive(Rank from, Tag tag, Deadline deadline) override {
    check(from);
    stop_telling();
    Mailbox& mailbox = place_.mailbox;
    const Place& sender = world_->place(from);
    for (;;) {
      if (world_->aborted.load()) world_->throw_failure();
      // Looked at before the mailbox, so that nothing slips in between unseen.
      const bool sender_gone = sender.gone.load();
      const std::uint64_t seen = mailbox.arrivals.load();
      {
        const std::lock_guard lock(mailbox.mutex);
        MessageQueue& queue = mailbox.from[static_cast<std::size_t>(from.value)];
        if (Message* message = queue.take(tag)) {
          message->queued = false;
          return {message->header, *message};
        }
      }
      if (sender_gone) throw PeerError(world_->lost({from}));
      const auto ready = [&] {
        return mailbox.arrivals.load() != seen || world_->aborted.load() || sender.gone.load();
      };
      if (!wait_for(from, ready, deadline)) {
        throw PeerError({FailureKind::late, {from}, fmt::format("{} did not send a message in time", to_string(from))});
      }
    }
  }

  void expect(Rank, Tag) override {}  // a message lies ready as soon as it is sent

  void abort(Failure failure) noexcept override { world_->abort(std::move(failure)); }

  std::optional<Failure> failure() const override {
    if (!world_->aborted.load()) return std::nullopt;
    const std::lock_guard lock(world_->mutex);
    return world_->failure;
  }

  void depart(std::string_view why) noexcept override { world_->depart(rank_, why, /*from_descendants=*/true); }

  Rank held_up_by(Rank peer) const override {
    const int other = world_->place(peer).waiting_for.load();
    return other < 0 ? peer : Rank{other};
  }

  EngineCalls* engine_calls() override { return nullptr; }

  SharedBoard* shared_board() override { return world_->shared_memory ? &board_ : nullptr; }

  std::unique_ptr<Transport> regroup(std::span<const Rank> list, Deadline deadline) override {
    const std::vector<Rank> members(list.begin(), list.end());
    for (Rank member : members) check(member);
    std::shared_ptr<World> world = world_->regroup(rank_, members, deadline);
    const auto place = std::ranges::find(members, rank_) - members.begin();
    return std::make_unique<Endpoint>(std::move(world), Rank{static_cast<int>(place)});
  }

 private:
  // Waits, and meanwhile tells others for whom. A wait that failed goes on telling: whoever looks for the one to blame
  // may come a moment later.
  template <typename Ready>
  bool wait_for(Rank peer, Ready&& ready, Deadline deadline) {
    place_.waiting_for.store(peer.value);
    const bool in_time = place_.doorbell.wait(ready, deadline, world_->patience);
    if (in_time) place_.waiting_for.store(-1);
    return in_time;
  }

  void stop_telling() {
    if (place_.waiting_for.load(std::memory_order_relaxed) >= 0) place_.waiting_for.store(-1);
  }

  void check(Rank peer) const {
    if (peer.value < 0 || peer.value >= size()) {
      throw UsageError(fmt::format("there is no {}: the world has {} ranks", to_string(peer), size()));
    }
  }

  MessageQueue& queue_to(Place& receiver) const { return receiver.mailbox.from[static_cast<std::size_t>(rank_.value)]; }

  Message& message_of(SendTicket ticket) {
    Mailbox& mailbox = world_->place(ticket.to).mailbox;
    const std::lock_guard lock(mailbox.mutex);
    TUTTI_ASSERT_LT(ticket.id, mailbox.messages.size());
    return mailbox.messages[ticket.id];
  }

  // Ends the sender's part. A message that is still queued is taken back where it has to be (its payload is needed), or
  // where `take_back` or the receiver's absence says so. True where it was taken back. Waits while it is being read,
  // which ends because the reader is copying.
  bool let_go(Message& message, bool take_back = false) noexcept {
    Place& receiver = *message.receiver;
    Mailbox& mailbox = receiver.mailbox;
    for (;;) {
      {
        const std::lock_guard lock(mailbox.mutex);
        if (message.queued && (take_back || !message.done.load() || receiver.gone.load())) {
          queue_to(receiver).remove(&message);
          message.queued = message.held_by_receiver = message.held_by_sender = false;
          mailbox.put_back_if_unheld(message);
          return true;
        }
        if (message.done.load()) {
          message.held_by_sender = false;
          mailbox.put_back_if_unheld(message);
          return false;
        }
      }
      place_.doorbell.wait([&] { return message.done.load(); }, Deadline::after(std::chrono::seconds(1)),
                           world_->patience);
    }
  }

  const std::shared_ptr<World> world_;
  const Rank rank_;
  Place& place_;
  Board<World> board_;
};

}  // namespace
}  // namespace threads

// Some tens of microseconds.
static constexpr Patience kSleepSoon{.spins = 100, .yields = 100};

std::vector<std::unique_ptr<Transport>> make_threads_world(int ranks, const ThreadsOptions& options) {
  if (ranks < 1) throw UsageError(fmt::format("a world needs at least 1 rank, found {}", ranks));
  const auto world = std::make_shared<threads::World>(
      ranks, options.shared_memory,
      options.waits_awake ? Patience::for_ranks(ranks, count_cores(usable_cores())) : kSleepSoon);
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (Rank rank : all_ranks(ranks)) endpoints.push_back(std::make_unique<threads::Endpoint>(world, rank));
  return endpoints;
}

}  // namespace tutti
