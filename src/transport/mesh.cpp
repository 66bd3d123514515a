#include "mesh.hpp"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "processes_world.hpp"

namespace tutti::processes {
namespace {

using namespace std::chrono_literals;

// How long a process that ends waits until the others have heard that it does.
constexpr Duration kGoodbye = 1s;
// How long who gives a message up waits until what is on its way has arrived, where the peer is not heard of, and where
// it is.
constexpr Duration kTakesBack = 5s;
constexpr Duration kTakesBackAtLast = 60s;
// How long a piece lies at the front of its link until it is put aside.
constexpr Duration kPieceWaits = 20ms;
// How often the mesh's own thread looks whether it is needed, while others wait and poll anyway.
constexpr Duration kNap = 2ms;

// What processes of one host share: a doorbell each, and a ring for each ordered pair.
std::size_t bells_bytes(std::size_t members) { return members * 128; }

}  // namespace

std::size_t Mesh::segment_bytes(std::size_t members) {
  return bells_bytes(members) + members * members * sizeof(FrameRing);
}

Mesh::Mesh(MeshOptions options)
    : rank_(options.rank.value),
      heartbeat_(options.heartbeat),
      peers_(options.wires.size()),
      peer_bells_(options.wires.size()) {
  const auto now = Deadline::Clock::now();
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].heard = now;
    peers_[i].wire = std::move(options.wires[i]);
    if (peers_[i].wire) peers_[i].wire->start([this] { bell_.load()->ring(); });
  }
  housekeeper_ = std::thread([this] { keep_house(); });
}

Mesh::~Mesh() {
  {
    std::unique_lock lock(mutex_);
    for (int i = 0; i < size(); ++i) {
      if (i != rank_) post(i, {.kind = FrameKind::goodbye});
    }
    const auto all_heard = [&] {
      return std::ranges::all_of(peers_, [](const Peer& peer) {
        return !peer.wire || peer.gone || peer.said_goodbye || peer.heard_our_goodbye;
      });
    };
    wait(lock, all_heard, Deadline::after(kGoodbye));
  }
  {
    const std::lock_guard lock(stop_mutex_);
    stopping_.store(true);
  }
  stopped_.notify_all();
  bell_.load()->ring();
  housekeeper_.join();
  close_wires();
  // Before the memory with the doorbells goes, that links ring.
  peers_.clear();
}

// All at once: each may wait until its engine looks up.
void Mesh::close_wires() {
  std::vector<std::jthread> closing;
  for (Peer& peer : peers_) {
    if (!peer.wire) continue;
    try {
      closing.emplace_back([&peer] { peer.wire->close(); });
    } catch (const std::system_error&) {  // no more threads
      peer.wire->close();
    }
  }
}

void Mesh::share_memory(Segment segment, const std::vector<int>& members, int cores) {
  std::unique_lock lock(mutex_);
  segment.forget_file();
  const std::size_t count = members.size();
  std::byte* memory = segment.data();
  const auto bell_of = [&](std::size_t place) { return reinterpret_cast<Doorbell*>(memory + place * 128); };
  auto* rings = reinterpret_cast<FrameRing*>(memory + bells_bytes(count));
  const auto mine = static_cast<std::size_t>(std::ranges::find(members, rank_) - members.begin());
  for (std::size_t place = 0; place < count; ++place) {
    if (place == mine) continue;
    const auto peer = static_cast<std::size_t>(members[place]);
    peer_bells_[peer] = bell_of(place);
    peers_[peer].memory_owner =
        std::make_unique<MemoryLink>(rings[mine * count + place], rings[place * count + mine], *peer_bells_[peer]);
    peers_[peer].memory.store(peers_[peer].memory_owner.get(), std::memory_order_release);
  }
  Doorbell* old = bell_.exchange(bell_of(mine));
  patience_ = Patience::for_ranks(static_cast<int>(count), cores);
  has_a_core_for_each_ = static_cast<int>(count) <= cores;
  segment_ = std::move(segment);
  old->ring();  // the mesh's own thread, if it sleeps there, comes over
}

void Mesh::ring(int peer) noexcept {
  if (Doorbell* bell = peer_bells_[static_cast<std::size_t>(peer)]) bell->ring();
}

bool Mesh::has_news() const noexcept {
  if (wants_to_write_.load(std::memory_order_relaxed)) return true;
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    const Link* memory = peer.memory.load(std::memory_order_acquire);
    return (memory != nullptr && memory->stirred()) || (peer.wire && peer.wire->stirred());
  });
}

void Mesh::poll(int callers_waiting) {
  bool handled = false;
  bool wants = false;
  for (int i = 0; i < size(); ++i) {
    Peer& peer = peers_[static_cast<std::size_t>(i)];
    if (!peer.wire || peer.gone) continue;
    if (Link* memory = peer.memory.load()) handled |= drain(i, *memory);
    handled |= drain(i, *peer.wire);
    // Before the closing, which a peer that leaves may do at once: what it took counts as taken.
    pump(peer);
    if (const auto why = peer.wire->closed()) {
      // What it wrote before it went, all of it.
      peer.closing = true;
      if (Link* memory = peer.memory.load()) drain(i, *memory);
      lose(i, *why, peer.said_goodbye);
      part_with(peer);
      handled = true;
      continue;
    }
    wants |= !peer.queue.empty() || !peer.flowing.empty();
  }
  wants_to_write_.store(wants, std::memory_order_relaxed);
  // Whoever else waits may wait for just this.
  if (handled && waiting_.load() > callers_waiting) bell_.load()->ring();
}

bool Mesh::drain(int rank, Link& link) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  bool handled = false;
  while (!(peer.held && &link == &peer.path())) {
    const FrameBytes bytes = link.front();
    if (bytes.empty() || !handle(rank, Frame::from(bytes))) break;
    link.pop();
    if (&link == &peer.path()) peer.piece_waits.reset();
    handled = true;
  }
  if (handled) peer.heard = Deadline::Clock::now();
  return handled;
}

bool Mesh::handle(int rank, const Frame& frame) {
  Peer& from = peers_[static_cast<std::size_t>(rank)];
  const FrameHead& head = frame.head;
  switch (head.kind) {
    case FrameKind::heartbeat: return true;
    case FrameKind::goodbye:
      from.said_goodbye = true;
      post(rank, {.kind = FrameKind::goodbye_heard});
      lose(rank, "has left", /*clean=*/true);
      return true;
    case FrameKind::goodbye_heard: from.heard_our_goodbye = true; return true;
    case FrameKind::pull:
    case FrameKind::drop: {
      TUTTI_ASSERT_LT(head.id & 0xffffffff, messages_.size());
      Outgoing& message = messages_[head.id & 0xffffffff];
      if (message.id != head.id || message.done) return true;  // it was taken back when this was on its way
      if (head.kind == FrameKind::pull) {
        if (!message.flows) start_flowing(message);
      } else {
        // What went in comes back first.
        std::erase(from.flowing, message.id);
        if (message.lent_to == nullptr) {
          message.flows = false;
          message.done = true;
        } else if (message.flows && message.written < message.length) {
          message.written = message.length;
          from.lent.push_back(message.id);
          message.lent_to->want_back();
        }
      }
      return true;
    }
    case FrameKind::piece: {
      const auto found = from.announced.find(head.id);
      if (found == from.announced.end()) return true;  // given up meanwhile
      if (found->second->being_read) return false;
      if (found->second->arrived > 0 || from.closing) {
        found->second->keep(frame);
        return true;
      }
      // Its reader is likely on its way, and would read it where it lies; but what is behind it must not wait for long.
      if (!from.piece_waits) from.piece_waits = Deadline::after(kPieceWaits);
      if (!from.piece_waits->passed()) return false;
      found->second->keep(frame);
      return true;
    }
    case FrameKind::answer: {
      const auto found = questions_.find(head.id);
      if (found != questions_.end()) found->second = head.tag;
      return true;
    }
    default: break;
  }
  const auto found = worlds_.find(head.world);
  const std::shared_ptr<World> world = found == worlds_.end() ? nullptr : found->second.lock();
  if (world) {
    world->handle(rank, frame);
  } else if (head.kind == FrameKind::ask) {
    post(rank, {.world = head.world, .id = head.id, .kind = FrameKind::answer});
  } else if (!past_worlds_.contains(head.world)) {
    std::vector<std::byte> kept(sizeof head + frame.body.size());
    std::memcpy(kept.data(), &head, sizeof head);
    std::ranges::copy(frame.body, kept.begin() + sizeof head);
    early_[head.world].emplace_back(rank, std::move(kept));
  }
  return true;
}

void Mesh::post(int rank, const FrameHead& head, std::span<const std::byte> body) {
  Peer& to = peers_[static_cast<std::size_t>(rank)];
  if (!to.wire || to.gone) return;
  const auto head_bytes = std::as_bytes(std::span(&head, 1));
  if (head.kind == FrameKind::heartbeat) {
    // One that finds no room is not worth keeping.
    to.wire->write(head_bytes, body);
    return;
  }
  if (to.queue.empty() && to.path().write(head_bytes, body)) return;
  std::vector<std::byte> kept(head_bytes.begin(), head_bytes.end());
  kept.insert(kept.end(), body.begin(), body.end());
  to.queue.push_back(std::move(kept));
  wants_to_write_.store(true);
  pump(to);  // there may be room again since, and nobody knew that we want it
}

void Mesh::pump(Peer& peer) {
  Link& link = peer.path();
  while (!peer.queue.empty()) {
    const std::span<const std::byte> frame = peer.queue.front();
    if (!link.write(frame.first(Link::kHeadBytes), frame.subspan(Link::kHeadBytes))) break;
    peer.queue.pop_front();
  }
  while (peer.queue.empty() && !peer.flowing.empty()) {
    Outgoing& next = message(peer.flowing.front());
    const std::uint64_t count = std::min<std::uint64_t>(link.most_body_bytes(), next.length - next.written);
    const FrameHead head{.world = next.world, .id = next.id, .offset = next.written, .kind = FrameKind::piece};
    const bool last = next.written + count == next.length;
    if (!link.lend(std::as_bytes(std::span(&head, 1)), {next.payload + next.written, count}, last)) break;
    next.written += count;
    next.lent_to = &link;
    next.loan = link.lent();
    if (!last) continue;
    peer.flowing.pop_front();
    peer.lent.push_back(next.id);
  }
  while (!peer.lent.empty() && is_returned(message(peer.lent.front()))) {
    Outgoing& through = message(peer.lent.front());
    peer.lent.pop_front();
    through.flows = false;
    through.done = true;
    bell_.load()->ring();  // whoever waits for it to be through
  }
}

Outgoing& Mesh::start_message(int peer) {
  if (free_messages_.empty()) {
    for (int i = 0; i < 16; ++i) {
      free_messages_.push_back(static_cast<std::uint32_t>(messages_.size()));
      messages_.emplace_back();
    }
  }
  const std::uint32_t place = free_messages_.back();
  free_messages_.pop_back();
  Outgoing& message = messages_[place];
  // What was said about the one that had this place before must not be taken for this one.
  const std::uint64_t generation = (message.id >> 32) + 1;
  message = {.id = generation << 32 | place, .number = ++started_messages_, .peer = peer, .in_use = true};
  return message;
}

Outgoing& Mesh::message(std::uint64_t id) {
  TUTTI_ASSERT_LT(id & 0xffffffff, messages_.size());
  Outgoing& found = messages_[id & 0xffffffff];
  TUTTI_ASSERT_EQ(found.id, id);
  return found;
}

void Mesh::start_flowing(Outgoing& message) {
  Peer& to = peer(message.peer);
  message.flows = true;
  to.flowing.push_back(message.id);
  pump(to);
  if (!to.flowing.empty()) wants_to_write_.store(true, std::memory_order_relaxed);
}

void Mesh::end_message(std::unique_lock<std::mutex>& lock, Outgoing& message) {
  Peer& to = peer(message.peer);
  if (message.flows) {
    std::erase(to.flowing, message.id);
    std::erase(to.lent, message.id);
    message.flows = false;
  }
  message.done = true;
  const auto returned = [&] { return is_returned(message); };
  if (!returned()) message.lent_to->want_back();
  const Deadline at_last = Deadline::after(kTakesBackAtLast);
  while (!wait(lock, returned, Deadline::after(kTakesBack))) {
    if (Deadline::Clock::now() - to.heard < kTakesBack && !at_last.passed()) continue;  // alive, and slow
    lose(message.peer, "did not take what was on its way to it: it was stopped, or cut off", /*clean=*/false);
  }
  message.in_use = false;
  free_messages_.push_back(static_cast<std::uint32_t>(message.id & 0xffffffff));
}

void Mesh::end_messages(std::unique_lock<std::mutex>& lock, std::uint64_t world) {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].in_use && messages_[i].world == world) end_message(lock, messages_[i]);
  }
}

Outgoing* Mesh::find_announced(int peer, std::uint64_t world, Tag tag) {
  Outgoing* oldest = nullptr;
  for (Outgoing& message : messages_) {
    const bool waits = message.in_use && !message.done && !message.flows;
    if (!waits || message.peer != peer || message.world != world || message.tag != tag) continue;
    if (oldest == nullptr || message.number < oldest->number) oldest = &message;
  }
  return oldest;
}

void Mesh::add_world(const std::shared_ptr<World>& world) {
  worlds_[world->id()] = world;
  const auto found = early_.find(world->id());
  if (found == early_.end()) return;
  const auto frames = std::move(found->second);
  early_.erase(found);
  for (const auto& [from, bytes] : frames) world->handle(from, Frame::from(bytes));
}

void Mesh::remove_world(std::uint64_t id) {
  worlds_.erase(id);
  past_worlds_.insert(id);
}

std::uint64_t Mesh::ask(int rank, std::uint64_t world) {
  questions_[++last_question_] = std::nullopt;
  post(rank, {.world = world, .id = last_question_, .kind = FrameKind::ask});
  return last_question_;
}

std::optional<std::uint64_t> Mesh::answer(std::uint64_t question) {
  const auto found = questions_.find(question);
  return found == questions_.end() ? std::nullopt : found->second;
}

void Mesh::lose(int rank, const std::string& why, bool clean) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.why_gone.empty()) peer.why_gone = why;
  peer.flowing.clear();
  for (const auto& [id, weak] : worlds_) {
    if (const std::shared_ptr<World> world = weak.lock()) world->lose(rank, why, clean);
  }
  if (!clean) part_with(peer);  // otherwise there is still the answer to a goodbye to be written
}

// After all was said: who was only stopped for a while finds it there.
void Mesh::part_with(Peer& peer) {
  peer.gone = true;
  peer.queue.clear();
  peer.wire->close();
}

// The mesh's own thread: polls while nobody else does, and sends and watches heartbeats.
void Mesh::keep_house() {
  const Duration interval = std::clamp<Duration>(heartbeat_ / 5, 1ms, 1s);
  auto last_beat = Deadline::Clock::now();
  std::uint64_t waits_seen = 0;
  while (!stopping_.load()) {
    const std::uint64_t waits = waits_.load(std::memory_order_relaxed);
    if (waiting_.load() > 0 || waits != waits_seen) {
      std::unique_lock lock(stop_mutex_);
      stopped_.wait_for(lock, std::min(kNap, interval), [&] { return stopping_.load(); });
      lock.unlock();
      if (has_news()) {
        const std::lock_guard guard(mutex_);
        poll();
      }
    } else {
      bool looked = false;
      Doorbell* bell = bell_.load();
      bell->wait(
          [&] {
            // The bell may have become another since, which nobody who sleeps at this one hears.
            if (stopping_.load() || waiting_.load() > 0 || bell_.load() != bell) return true;
            if (!has_news()) return false;
            looked = true;
            const std::lock_guard lock(mutex_);
            poll();
            return wants_to_write_.load();
          },
          Deadline::after(piece_waits() ? std::min(kPieceWaits, interval) : interval), {});
      if (looked && wants_to_write_.load()) std::this_thread::yield();
    }
    waits_seen = waits;
    const auto now = Deadline::Clock::now();
    if (now - last_beat < interval) continue;
    const std::lock_guard lock(mutex_);
    poll();
    // Who was stopped itself has heard of nobody.
    if (now - last_beat > heartbeat_ / 2) {
      for (Peer& peer : peers_) peer.heard = now;
    }
    last_beat = now;
    beat();
  }
}

bool Mesh::piece_waits() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.piece_waits.has_value(); });
}

void Mesh::beat() {
  const auto now = Deadline::Clock::now();
  for (int i = 0; i < size(); ++i) {
    Peer& peer = peers_[static_cast<std::size_t>(i)];
    if (!peer.wire || peer.gone || peer.said_goodbye) continue;
    post(i, {.kind = FrameKind::heartbeat});
    if (now - peer.heard > heartbeat_) {
      lose(i, fmt::format("was not heard of for {}: it was stopped, or cut off", to_string(heartbeat_)),
           /*clean=*/false);
      bell_.load()->ring();
    }
  }
}

}  // namespace tutti::processes
