#include "gloo_link.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>

#include <sys/mman.h>
#include <tutti/base/assert.hpp>

namespace tutti::c10d {
namespace {

using namespace std::chrono_literals;

// How long a link waits for its thread when it goes.
constexpr auto kEnds = 1s;

}  // namespace

GlooLink::GlooLink(std::shared_ptr<void> keep, ::gloo::transport::Pair& out, ::gloo::transport::Pair& in)
    : inbox_(std::make_shared<Inbox>(std::move(keep), in)),
      out_(out),
      outgoing_(make_places()),
      sender_(out_.createSendBuffer(kFrames, outgoing_.get(), kPlaces * kPlaceBytes)),
      // All memory there is: what is lent can be anywhere.
      lender_(out_.createSendBuffer(kBodies, nullptr, ~std::size_t{0})) {}

GlooLink::~GlooLink() {
  close();
  if (!listener_.joinable()) return;
  std::unique_lock lock(inbox_->mutex);
  inbox_->ring = nullptr;
  const bool has_ended = inbox_->changed.wait_for(lock, kEnds, [&] { return inbox_->has_ended; });
  lock.unlock();
  if (has_ended) {
    listener_.join();
  } else {
    listener_.detach();
  }
}

// Memory that the system provides when it is touched, as most of it never is; and empty: what an earlier link left
// behind would be taken for frames that had come.
GlooLink::Places GlooLink::make_places() {
  void* memory = ::mmap(nullptr, kPlaces * kPlaceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return Places(static_cast<std::byte*>(memory));
}

void GlooLink::Unmap::operator()(std::byte* memory) const { ::munmap(memory, kPlaces * kPlaceBytes); }

void GlooLink::start(std::function<void()> ring) {
  inbox_->ring = std::move(ring);
  listener_ = std::thread([inbox = inbox_] { inbox->listen(); });
}

// --- what comes in ---

GlooLink::Inbox::Inbox(std::shared_ptr<void> its_keep, ::gloo::transport::Pair& in)
    : keep(std::move(its_keep)),
      pair(in),
      places(make_places()),
      bodies(pair.createRecvBuffer(kBodies, places.get(), kPlaces * kPlaceBytes)),
      frames(pair.createRecvBuffer(kFrames, places.get(), kPlaces * kPlaceBytes)) {}

void GlooLink::Inbox::listen() {
  std::uint64_t number = 0;
  for (bool ends = false; !ends;) {
    try {
      frames->waitRecv();
      arrived.store(++number);
    } catch (const std::exception&) {
      ends = true;
      while (is_whole(number)) ++number;
      end.store(number);
      arrived.store(number + 1);
    }
    const std::lock_guard lock(mutex);
    if (ring) ring();
    has_ended = ends;
    changed.notify_all();
  }
}

GlooLink::Prefix GlooLink::Inbox::prefix(std::uint64_t number) const {
  Prefix ahead;
  std::memcpy(&ahead, place(number), sizeof ahead);
  return ahead;
}

bool GlooLink::Inbox::is_whole(std::uint64_t number) const {
  const Prefix ahead = prefix(number);
  const std::size_t head_bytes = ahead.kind == Kind::acknowledgement ? 0 : kHeadBytes;
  const std::size_t body_bytes = ahead.kind == Kind::whole ? ahead.body_bytes : 0;
  if (body_bytes > kMostBodyBytes) return false;
  Stamp found = 0;
  std::memcpy(&found, place(number) + sizeof ahead + head_bytes + body_bytes, sizeof found);
  return found == stamp(number);
}

// --- writing ---

bool GlooLink::has_room() {
  look_for_acknowledgements();
  return written_ - acknowledged_ < kPlaces - kReserved;
}

bool GlooLink::write(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (!has_room()) return false;
  send_frame({.kind = Kind::whole}, head, body);
  return true;
}

bool GlooLink::lend(std::span<const std::byte> head, std::span<const std::byte> body, bool wanted_back) {
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  if (!has_room()) return false;
  if (body.size() <= kMostCopiedBytes) {
    send_frame({.kind = Kind::whole, .wanted_back = wanted_back}, head, body);
    return true;
  }
  is_lent_[written_ % kPlaces] = true;
  ++lent_;
  const std::size_t place = offset(written_) + kLentBody;
  attempt([&] { lender_->send(reinterpret_cast<std::uintptr_t>(body.data()), body.size(), place); });
  send_frame({.body_bytes = static_cast<std::uint32_t>(body.size()), .kind = Kind::head, .wanted_back = wanted_back},
             head, {});
  return true;
}

std::uint64_t GlooLink::returned() {
  look_for_acknowledgements();
  return is_closed_ ? lent_ : returned_;
}

// Where there is no room to say so, so much is on its way that the peer tells how far it is anyway, at the latest with
// its next heartbeat.
void GlooLink::want_back() {
  if (written_ - acknowledged_ < kPlaces - 1) send_frame({.wanted_back = true}, {}, {});
}

// With the body, unless that went ahead.
void GlooLink::send_frame(Prefix prefix, std::span<const std::byte> head, std::span<const std::byte> body) {
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  prefix.acknowledged = told_ = popped_.load(std::memory_order_relaxed);
  owes_ = false;
  if (prefix.kind == Kind::whole) prefix.body_bytes = static_cast<std::uint32_t>(body.size());
  const Stamp behind = stamp(written_);
  const std::size_t place = offset(written_++);
  std::byte* frame = outgoing_.get() + place;
  const std::size_t bytes = sizeof prefix + head.size() + body.size();
  std::memcpy(frame, &prefix, sizeof prefix);
  if (!head.empty()) std::memcpy(frame + sizeof prefix, head.data(), head.size());
  if (!body.empty()) std::memcpy(frame + kBodyAlignment, body.data(), body.size());
  std::memcpy(frame + bytes, &behind, sizeof behind);
  attempt([&] { sender_->send(place, bytes + sizeof behind, place); });
}

// Gloo throws where the connection is closed.
template <typename Call>
void GlooLink::attempt(Call&& call) noexcept {
  if (is_closed_.load() || is_broken_) return;
  try {
    call();
  } catch (const std::exception&) {
    is_broken_ = true;
  }
}

// Also in frames that are not at the front yet: whoever is at the front may wait for room to write.
void GlooLink::look_for_acknowledgements() {
  const std::uint64_t counted = inbox_->arrived.load();
  const std::uint64_t arrived = std::min(counted, inbox_->end.load());
  seen_ = std::max(seen_, popped_.load(std::memory_order_relaxed));
  while (seen_ < arrived) {
    const Prefix seen = inbox_->prefix(seen_++);
    for (; acknowledged_ < seen.acknowledged; ++acknowledged_) {
      bool& is_lent = is_lent_[acknowledged_ % kPlaces];
      returned_ += is_lent ? 1 : 0;
      is_lent = false;
    }
  }
}

// --- reading ---

FrameBytes GlooLink::front() {
  while (stirred() && !is_end()) {
    const std::uint64_t place = popped_.load(std::memory_order_relaxed);
    const Prefix ahead = inbox_->prefix(place);
    if (ahead.kind != Kind::acknowledgement) {
      const std::byte* frame = inbox_->place(place);
      return {{frame + sizeof ahead, kHeadBytes},
              {frame + (ahead.kind == Kind::head ? kLentBody : kBodyAlignment), ahead.body_bytes}};
    }
    pop();
  }
  return {};
}

void GlooLink::pop() {
  look_for_acknowledgements();
  const std::uint64_t place = popped_.load(std::memory_order_relaxed);
  const Prefix ahead = inbox_->prefix(place);
  popped_.store(place + 1);
  owes_ = owes_ || ahead.wanted_back || place + 1 - told_ >= kPlaces / 2;
  // Where there is no room even for that, the peer has frames on their way that make some, and it is said then.
  if (owes_ && written_ - acknowledged_ < kPlaces) send_frame({}, {}, {});
}

// --- the end ---

std::optional<std::string> GlooLink::closed() {
  if (!is_end() && (!is_broken_ || stirred())) return std::nullopt;
  return "has died: its connection closed";
}

void GlooLink::close() noexcept {
  if (is_closed_.exchange(true)) return;
  inbox_->pair.close();
  out_.close();
  // Gloo wakes who waits for a message only when somebody finds the connection closed on sending.
  try {
    inbox_->pair.createSendBuffer(kNothing, nullptr, 0)->send();
  } catch (const std::exception&) {
  }
}

}  // namespace tutti::c10d
