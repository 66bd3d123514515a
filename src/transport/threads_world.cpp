#include "threads_world.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <tutti/transport/threads.hpp>

#include "lost.hpp"

namespace tutti::threads {

void Message::read(const PieceReader& reader) {
  std::size_t offset = 0;
  do {
    const std::size_t count = std::min(most_per_piece, header.length - offset);
    reader(offset, std::span(payload + offset, count));
    offset += count;
  } while (offset < header.length);
}

void Message::release() noexcept {
  // Once both sides have let go, the message may be somebody else's.
  Place& from = *sender;
  Mailbox& mailbox = receiver->mailbox;
  {
    const std::lock_guard lock(mailbox.mutex);
    held_by_receiver = false;
    done.store(true);
    mailbox.put_back_if_unheld(*this);
  }
  from.doorbell.ring();
}

void MessageQueue::append(Message* message) {
  message->next = nullptr;
  (first == nullptr ? first : last->next) = message;
  last = message;
}

Message* MessageQueue::take(Tag tag) {
  for (Message* message = first; message != nullptr; message = message->next) {
    if (message->header.tag != tag) continue;
    remove(message);
    return message;
  }
  return nullptr;
}

void MessageQueue::remove(Message* message) {
  Message* before = nullptr;
  for (Message* at = first; at != message; at = at->next) before = at;
  (before == nullptr ? first : before->next) = message->next;
  if (last == message) last = before;
}

Message& Mailbox::obtain() {
  if (free.empty()) {
    // A good number at once: how many are on their way at the same time is a matter of chance, and a call that has seen
    // its like should find enough. Room in `free` for all, so that putting back never allocates.
    const std::size_t more = std::max<std::size_t>(16, 2 * from.size());
    free.reserve(messages.size() + more);
    for (std::size_t i = 0; i < more; ++i) {
      Message& message = messages.emplace_back();
      message.id = messages.size() - 1;
      message.copy.reserve(kEagerBytes);
      free.push_back(&message);
    }
  }
  Message& message = *free.back();
  free.pop_back();
  return message;
}

void Mailbox::put_back_if_unheld(Message& message) {
  if (!message.held_by_sender && !message.held_by_receiver) free.push_back(&message);
}

World::World(int ranks, bool with_shared_memory, Patience ranks_patience)
    : shared_memory(with_shared_memory), patience(ranks_patience), places(static_cast<std::size_t>(ranks)) {
  for (Place& place : places) place.mailbox.from.resize(static_cast<std::size_t>(ranks));
}

void World::ring_all() noexcept {
  for (Place& place : places) place.doorbell.ring();
}

void World::abort(Failure why) noexcept {
  {
    const std::lock_guard lock(mutex);
    if (failure) return;
    failure = std::move(why);
    aborted.store(true);
  }
  ring_all();
}

void World::throw_failure() const {
  const std::lock_guard lock(mutex);
  throw PeerError(*failure);
}

void World::depart(Rank rank, std::string_view why, bool from_descendants) noexcept {
  std::vector<Descendant> below;
  {
    const std::lock_guard lock(mutex);
    if (!place(rank).gone.load()) {
      place(rank).why_gone = why;
      place(rank).gone.store(true);
    }
    if (from_descendants) below = descendants;
  }
  ring_all();
  for (const Descendant& descendant : below) {
    const auto found = std::ranges::find(descendant.members, rank);
    const std::shared_ptr<World> world = descendant.world.lock();
    if (world && found != descendant.members.end()) {
      world->depart(Rank{static_cast<int>(found - descendant.members.begin())}, why, true);
    }
  }
}

Failure World::lost(const std::vector<Rank>& ranks) const {
  const std::lock_guard lock(mutex);
  std::vector<std::pair<Rank, std::string>> gone;
  for (const Rank rank : ranks) gone.emplace_back(rank, place(rank).why_gone);
  return detail::lost_ranks(std::move(gone));
}

}  // namespace tutti::threads
