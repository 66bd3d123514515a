#include "processes_world.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>

#include "lost.hpp"

namespace tutti::processes {
namespace {

using namespace std::chrono_literals;

// Who does not answer within this is itself what others wait for.
constexpr Duration kAnswer = 250ms;

}  // namespace

World::World(std::shared_ptr<Mesh> mesh, std::uint64_t id, std::vector<int> members)
    : mesh_(std::move(mesh)), id_(id), members_(std::move(members)), places_(members_.size()) {
  rank_ = rank_of(mesh_->rank()).value();
  for (Rank rank : all_ranks(size())) {
    const Peer& peer = mesh_->peer(process(rank));
    if (!peer.why_gone.empty()) lose(process(rank), peer.why_gone, peer.said_goodbye);
  }
}

std::optional<Rank> World::rank_of(int process) const {
  const auto found = std::ranges::find(members_, process);
  if (found == members_.end()) return std::nullopt;
  return Rank{static_cast<int>(found - members_.begin())};
}

// --- messages ---

Incoming& World::obtain() {
  if (free_.empty()) free_.push_back(&messages_.emplace_back(*this));
  Incoming& message = *free_.back();
  free_.pop_back();
  message.asked_for = message.being_read = message.taken_back = message.eager = false;
  message.arrived = 0;
  return message;
}

SendTicket World::start_send(Rank to, Tag tag, std::span<const std::byte> payload) {
  const std::lock_guard lock(mesh_->mutex());
  Outgoing& message = mesh_->start_message(process(to));
  message.world = id_;
  message.tag = tag;
  message.payload = payload.data();
  message.length = payload.size();
  FrameHead head{.world = id_, .tag = tag.value, .length = payload.size(), .id = message.id};
  // To itself too: a rank could not read and finish at the same time.
  if (to == rank_ || payload.size() <= kEagerBytes) {
    head.kind = FrameKind::eager;
    message.done = !is_gone(to);
    if (to == rank_) {
      handle(mesh_->rank(), {head, payload});
      mesh_->ring_own_threads();
    } else {
      mesh_->post(process(to), head, payload);
    }
  } else {
    head.kind = FrameKind::announce;
    std::vector<Tag>& expected = place(to).expected;
    const auto found = std::ranges::find(expected, tag);
    head.offset = found != expected.end() ? 1 : 0;  // it comes without being asked for
    mesh_->post(process(to), head);
    if (found != expected.end()) {
      expected.erase(found);
      mesh_->start_flowing(message);
    }
  }
  return {to, message.id};
}

void World::finish_send(SendTicket ticket, Deadline deadline) {
  std::unique_lock lock(mesh_->mutex());
  const auto ready = [&] { return mesh_->message(ticket.id).done || is_aborted() || is_gone(ticket.to); };
  const bool in_time = wait_for(lock, ticket.to, ready, deadline);
  Outgoing& message = mesh_->message(ticket.id);
  const bool done = message.done;
  if (!done) mesh_->post(process(ticket.to), {.world = id_, .id = ticket.id, .kind = FrameKind::recall});
  mesh_->end_message(lock, message);
  if (is_aborted()) throw PeerError(*failure_);
  if (!in_time) {
    throw PeerError(
        {FailureKind::late, {ticket.to}, fmt::format("{} did not receive a message in time", to_string(ticket.to))});
  }
  if (!done) throw PeerError(lost_with_lock({ticket.to}));
}

void World::cancel_send(SendTicket ticket) noexcept {
  std::unique_lock lock(mesh_->mutex());
  Outgoing& message = mesh_->message(ticket.id);
  if (ticket.to == rank_) {
    std::deque<Incoming*>& queue = place(rank_).queue;
    const auto waiting = std::ranges::find(queue, ticket.id, &Incoming::id);
    if (waiting != queue.end()) {
      free_.push_back(*waiting);
      queue.erase(waiting);
    }
  } else {
    mesh_->post(process(ticket.to), {.world = id_, .id = ticket.id, .kind = FrameKind::recall});
  }
  mesh_->end_message(lock, message);
}

Incoming* World::take(Rank from, Tag tag) {
  std::deque<Incoming*>& queue = place(from).queue;
  const auto found = std::ranges::find_if(queue, [&](const Incoming* message) { return message->header.tag == tag; });
  if (found == queue.end()) return nullptr;
  Incoming* message = *found;
  queue.erase(found);
  return message;
}

Delivery World::receive(Rank from, Tag tag, Deadline deadline) {
  std::unique_lock lock(mesh_->mutex());
  Incoming* message = nullptr;
  const auto ready = [&] {
    if (is_aborted()) return true;
    message = take(from, tag);
    return message != nullptr || is_gone(from);
  };
  const bool in_time = wait_for(lock, from, ready, deadline);
  if (message != nullptr) {
    message->deadline = deadline;
    return {message->header, *message};
  }
  if (is_aborted()) throw PeerError(*failure_);
  if (in_time) throw PeerError(lost_with_lock({from}));
  throw PeerError({FailureKind::late, {from}, fmt::format("{} did not send a message in time", to_string(from))});
}

void World::expect(Rank from, Tag tag) {
  if (from == rank_) return;
  const std::lock_guard lock(mesh_->mutex());
  Place& sender = place(from);
  // A long message of that tag may have been announced already.
  if (std::ranges::any_of(sender.queue, [&](const Incoming* message) { return message->header.tag == tag; })) return;
  mesh_->post(process(from), {.world = id_, .tag = tag.value, .kind = FrameKind::expect});
}

void Incoming::read(const PieceReader& reader) {
  if (eager) return reader(0, std::span(data).first(header.length));
  Mesh& mesh = world.mesh();
  const int process = world.process(from);
  std::unique_lock lock(mesh.mutex());
  Peer& peer = mesh.peer(process);
  if (!asked_for && arrived == 0) {
    asked_for = true;
    mesh.post(process, {.world = world.id(), .id = id, .kind = FrameKind::pull});
  }
  being_read = true;
  if (arrived > 0) {
    lock.unlock();
    reader(0, std::span(data).first(arrived));
    lock.lock();
  }
  std::uint64_t read = arrived;
  while (read < header.length) {
    Frame piece;
    const auto ready = [&] {
      const FrameBytes bytes = peer.held ? FrameBytes{} : peer.path().front();
      if (!bytes.empty()) piece = Frame::from(bytes);
      if (!bytes.empty() && piece.head.kind == FrameKind::piece && piece.head.id == id) return true;
      piece = {};
      return world.is_aborted() || taken_back || world.is_gone(from);
    };
    const bool in_time = world.wait_for(lock, from, ready, deadline);
    if (piece.body.empty()) {
      if (world.is_aborted()) throw PeerError(*world.failure_);
      if (in_time && world.is_gone(from)) throw PeerError(world.lost_with_lock({from}));
      throw PeerError({FailureKind::late,
                       {from},
                       fmt::format("{} {}", to_string(from),
                                   taken_back ? "took a message back" : "did not send all of a message in time")});
    }
    // The piece is read where it lies, while others may go on with everything but this link.
    TUTTI_ASSERT_EQ(piece.head.offset, read);
    struct Hold {
      Mesh& mesh;
      Peer& peer;
      std::unique_lock<std::mutex>& lock;
      Hold(Mesh& its_mesh, Peer& its_peer, std::unique_lock<std::mutex>& its_lock)
          : mesh(its_mesh), peer(its_peer), lock(its_lock) {
        peer.held = true;
        lock.unlock();
      }
      ~Hold() {
        lock.lock();
        peer.held = false;
        peer.path().pop();
        peer.piece_waits.reset();
        mesh.ring_own_threads();  // somebody else may wait for what is now at the front
      }
    };
    {
      const Hold hold(mesh, peer, lock);
      reader(read, piece.body);
    }
    read += piece.body.size();
    peer.heard = Deadline::Clock::now();
  }
  peer.announced.erase(id);
  asked_for = false;
  arrived = header.length;
}

void Incoming::keep(const Frame& frame) {
  data.resize(header.length);
  TUTTI_ASSERT_LE(frame.head.offset + frame.body.size(), data.size());
  std::memcpy(data.data() + frame.head.offset, frame.body.data(), frame.body.size());
  arrived += frame.body.size();
}

void Incoming::release() noexcept {
  Mesh& mesh = world.mesh();
  const std::lock_guard lock(mesh.mutex());
  if (!eager) mesh.peer(world.process(from)).announced.erase(id);
  if (!eager && arrived < header.length) {
    mesh.post(world.process(from), {.world = world.id(), .id = id, .kind = FrameKind::drop});
  }
  being_read = asked_for = false;
  if (data.capacity() > 2 * kEagerBytes) std::vector<std::byte>().swap(data);
  world.free_.push_back(this);
}

// --- what comes in ---

void World::handle(int process, const Frame& frame) {
  const std::optional<Rank> found = rank_of(process);
  if (!found) return;
  const Rank from = *found;
  const FrameHead& head = frame.head;
  switch (head.kind) {
    case FrameKind::eager:
    case FrameKind::announce: {
      Incoming& message = obtain();
      message.header = {Tag{head.tag}, head.length};
      message.from = from;
      message.id = head.id;
      message.eager = head.kind == FrameKind::eager;
      if (message.eager) {
        message.data.assign(frame.body.begin(), frame.body.end());
      } else {
        // Its sender may hear that it is expected before we ask: pieces can come at any time.
        message.asked_for = head.offset != 0;
        mesh_->peer(process).announced[head.id] = &message;
      }
      place(from).queue.push_back(&message);
      return;
    }
    case FrameKind::expect:
      if (Outgoing* announced = mesh_->find_announced(process, id_, Tag{head.tag})) {
        mesh_->start_flowing(*announced);
      } else {
        place(from).expected.push_back(Tag{head.tag});
      }
      return;
    case FrameKind::recall: {
      std::deque<Incoming*>& queue = place(from).queue;
      const auto waiting = std::ranges::find(queue, head.id, &Incoming::id);
      if (waiting != queue.end()) {
        mesh_->peer(process).announced.erase(head.id);
        free_.push_back(*waiting);
        queue.erase(waiting);
        return;
      }
      const auto taken = mesh_->peer(process).announced.find(head.id);
      if (taken != mesh_->peer(process).announced.end()) taken->second->taken_back = true;
      return;
    }
    case FrameKind::abort: {
      Failure failure = Unpacker(frame.body).failure();
      if (is_ready_) return break_up(std::move(failure));
      if (!failed_before_) failed_before_ = std::move(failure);
      return;
    }
    case FrameKind::depart:
      if (!is_gone(from)) {
        place(from).why_gone = Unpacker(frame.body).text();
        place(from).gone.store(true);
      }
      return;
    case FrameKind::ask:
      return mesh_->post(process, {.world = id_,
                                   .tag = static_cast<std::uint64_t>(waiting_for_.load() + 1),
                                   .id = head.id,
                                   .kind = FrameKind::answer});
    case FrameKind::join: {
      Unpacker body(frame.body);
      const std::uint64_t number = body.number();
      const std::vector<Rank> members = body.ranks();
      place(from).brought[members] = number;
      place(from).last_brought = Round{members, number};
      return;
    }
    case FrameKind::refuse: {
      Unpacker body(frame.body);
      const Failure failure = body.failure();
      std::vector<Round> rounds(body.number());
      for (Round& round : rounds) {
        round.number = body.number();
        round.members = body.ranks();
      }
      return refuse(failure, rounds);
    }
    default: TUTTI_ASSERT(false);
  }
}

// --- failure ---

void World::post_to_all(const FrameHead& head, std::span<const std::byte> body) noexcept {
  for (Rank peer : all_ranks(size())) {
    if (peer != rank_) mesh_->post(process(peer), head, body);
  }
}

void World::break_up(Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  aborted_.store(true);
}

void World::be_ready() {
  const std::lock_guard lock(mesh_->mutex());
  is_ready_ = true;
  if (failed_before_) break_up(*std::exchange(failed_before_, std::nullopt));
}

void World::abort(Failure failure) noexcept {
  const std::lock_guard lock(mesh_->mutex());
  if (failure_) return;
  Packer body;
  body.failure(failure);
  break_up(std::move(failure));
  post_to_all({.world = id_, .kind = FrameKind::abort}, body.bytes());
  mesh_->ring_own_threads();
}

std::optional<Failure> World::failure() {
  const std::lock_guard lock(mesh_->mutex());
  mesh_->poll();
  return failure_;
}

void World::throw_failure() {
  const std::lock_guard lock(mesh_->mutex());
  throw PeerError(*failure_);
}

void World::depart(std::string_view why, bool from_descendants) noexcept {
  std::vector<std::shared_ptr<World>> below;
  {
    const std::lock_guard lock(mesh_->mutex());
    if (!departed_) {
      departed_ = true;
      place(rank_).why_gone = why;
      place(rank_).gone.store(true);
      Packer body;
      body.text(why);
      post_to_all({.world = id_, .kind = FrameKind::depart}, body.bytes());
    }
    if (from_descendants) {
      for (const auto& weak : descendants_) {
        if (auto world = weak.lock()) below.push_back(std::move(world));
      }
    }
  }
  for (const auto& world : below) world->depart(why, true);
}

void World::lose(int process, const std::string& why, bool clean) {
  const std::optional<Rank> rank = rank_of(process);
  if (!rank) return;
  if (!is_gone(*rank)) {
    place(*rank).why_gone = why;
    place(*rank).gone.store(true);
  } else {
    clean = true;  // it had left this world before
  }
  if (clean || failure_) return;
  // The others may notice later, or be connected to it still: they all hear the same. So does the lost one, if it was
  // only stopped for a while.
  const Failure failure{FailureKind::lost, {*rank}, fmt::format("{} {}", to_string(*rank), why)};
  Packer body;
  body.failure(failure);
  break_up(failure);
  post_to_all({.world = id_, .kind = FrameKind::abort}, body.bytes());
}

Failure World::lost(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(mesh_->mutex());
  return lost_with_lock(ranks);
}

Failure World::lost_with_lock(const std::vector<Rank>& ranks) {
  std::vector<std::pair<Rank, std::string>> gone;
  for (const Rank rank : ranks) gone.emplace_back(rank, place(rank).why_gone);
  return detail::lost_ranks(std::move(gone));
}

void World::close() noexcept {
  depart("has left", /*from_descendants=*/false);
  std::unique_lock lock(mesh_->mutex());
  mesh_->end_messages(lock, id_);
  // In one go with the rest, so that nothing more is announced to it.
  for (Rank rank : all_ranks(size())) {
    std::erase_if(mesh_->peer(process(rank)).announced,
                  [&](const auto& entry) { return &entry.second->world == this; });
  }
  mesh_->remove_world(id_);
}

// Waits, and meanwhile tells those who ask for whom. A wait that failed goes on telling: whoever looks for the one to
// blame may come a moment later.
template <typename Ready>
bool World::wait_for(std::unique_lock<std::mutex>& lock, Rank peer, Ready&& ready, Deadline deadline) {
  waiting_for_.store(-1);
  if (ready()) return true;
  waiting_for_.store(peer.value);
  const bool in_time = mesh_->wait(lock, ready, deadline);
  if (in_time) waiting_for_.store(-1);
  return in_time;
}

Rank World::held_up_by(Rank peer) {
  std::unique_lock lock(mesh_->mutex());
  if (peer == rank_) {
    const int other = waiting_for_.load();
    return other < 0 ? peer : Rank{other};
  }
  const std::uint64_t question = mesh_->ask(process(peer), id_);
  mesh_->wait(
      lock, [&] { return mesh_->answer(question).has_value() || is_gone(peer); }, Deadline::after(kAnswer));
  const std::uint64_t answer = mesh_->answer(question).value_or(0);
  mesh_->forget_question(question);
  return answer == 0 ? peer : Rank{static_cast<int>(answer) - 1};
}

}  // namespace tutti::processes
