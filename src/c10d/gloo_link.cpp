#include "gloo_link.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include <tutti/base/assert.hpp>

namespace tutti::c10d {
namespace {

// Gloo throws where the connection is closed, which the listener tells.
template <typename Call>
void unless_closed(Call&& call) noexcept {
  try {
    call();
  } catch (const std::exception&) {
  }
}

}  // namespace

GlooLink::GlooLink(std::shared_ptr<void> keep, ::gloo::transport::Pair& out, ::gloo::transport::Pair& in)
    : keep_(std::move(keep)),
      out_(out),
      in_(in),
      outgoing_(make_places()),
      incoming_(make_places()),
      sender_(out_.createSendBuffer(kSlot, outgoing_.get(), kPlaces * kPlaceBytes)),
      // All memory there is: what is lent can be anywhere.
      lender_(out_.createSendBuffer(kSlot, nullptr, ~std::size_t{0})),
      receiver_(in_.createRecvBuffer(kSlot, incoming_.get(), kPlaces * kPlaceBytes)) {}

GlooLink::~GlooLink() {
  close();
  if (listener_.joinable()) listener_.join();
}

// Memory that the system provides when it is touched: most of it never is.
GlooLink::Places GlooLink::make_places() {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kBodyAlignment, kPlaces * kPlaceBytes));
  if (memory == nullptr) throw std::bad_alloc();
  return Places(memory);
}

void GlooLink::start(std::function<void()> ring) {
  ring_ = std::move(ring);
  listener_ = std::thread([this] { listen(); });
}

void GlooLink::listen() {
  std::uint64_t arrived = 0;
  bool body_follows = false;
  for (;;) {
    bool ends = false;
    try {
      receiver_->waitRecv();
    } catch (const std::exception&) {
      ends = true;
    }
    if (ends) {
      end_.store(arrived_.load());
      arrived_.fetch_add(1);
    } else {
      body_follows = !body_follows && prefix(arrived).kind == Kind::head;
      ++arrived;
      if (body_follows) continue;
      arrived_.store(arrived);
    }
    ring_();
    if (ends) return;
  }
}

// --- writing ---

bool GlooLink::has_room(std::uint64_t places) {
  look_for_acknowledgements();
  return written_ + places - acknowledged_ <= kPlaces - kReserved;
}

bool GlooLink::write(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (!has_room(1)) return false;
  send_head({.kind = Kind::whole}, head, body);
  return true;
}

bool GlooLink::lend(std::span<const std::byte> head, std::span<const std::byte> body, bool wanted_back) {
  if (body.size() <= kMostCopiedBytes) return write(head, body);
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  if (!has_room(2)) return false;
  send_head({.body_bytes = static_cast<std::uint32_t>(body.size()), .kind = Kind::head, .wanted_back = wanted_back},
            head, {});
  is_lent_[written_ % kPlaces] = true;
  const std::size_t place = offset(written_++);
  ++lent_;
  if (is_closed_) return true;
  unless_closed([&] { lender_->send(reinterpret_cast<std::uintptr_t>(body.data()), body.size(), place); });
  return true;
}

std::uint64_t GlooLink::returned() {
  look_for_acknowledgements();
  return is_closed_ ? lent_ : returned_;
}

// Where there is no room to say so, so much is on its way that the peer tells how far it is anyway.
void GlooLink::want_back() {
  if (written_ - acknowledged_ < kPlaces) send_head({.wanted_back = true}, {}, {});
}

// With the body where it is one with it.
void GlooLink::send_head(Prefix prefix, std::span<const std::byte> head, std::span<const std::byte> body) {
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  prefix.acknowledged = told_ = popped_.load(std::memory_order_relaxed);
  owes_ = false;
  if (prefix.kind == Kind::whole) prefix.body_bytes = static_cast<std::uint32_t>(body.size());
  const std::size_t place = offset(written_++);
  std::byte* frame = outgoing_.get() + place;
  std::memcpy(frame, &prefix, sizeof prefix);
  if (!head.empty()) std::memcpy(frame + sizeof prefix, head.data(), head.size());
  if (!body.empty()) std::memcpy(frame + kBodyAlignment, body.data(), body.size());
  if (is_closed_) return;
  unless_closed([&] { sender_->send(place, sizeof prefix + head.size() + body.size(), place); });
}

// Also in frames that are not at the front yet: whoever is at the front may wait for room to write.
void GlooLink::look_for_acknowledgements() {
  const std::uint64_t arrived = std::min(arrived_.load(), end_.load());
  seen_ = std::max(seen_, popped_.load(std::memory_order_relaxed));
  while (seen_ < arrived) {
    const Prefix seen = prefix(seen_);
    seen_ += seen.kind == Kind::head ? 2 : 1;
    for (; acknowledged_ < seen.acknowledged; ++acknowledged_) {
      bool& is_lent = is_lent_[acknowledged_ % kPlaces];
      returned_ += is_lent ? 1 : 0;
      is_lent = false;
    }
  }
}

// --- reading ---

GlooLink::Prefix GlooLink::prefix(std::uint64_t place) const {
  Prefix prefix;
  std::memcpy(&prefix, incoming(place), sizeof prefix);
  return prefix;
}

FrameBytes GlooLink::front() {
  while (stirred() && !is_end()) {
    const std::uint64_t place = popped_.load(std::memory_order_relaxed);
    const Prefix ahead = prefix(place);
    if (ahead.kind != Kind::acknowledgement) {
      const std::byte* head = incoming(place) + sizeof ahead;
      return {{head, kHeadBytes},
              {ahead.kind == Kind::head ? incoming(place + 1) : head + kHeadBytes, ahead.body_bytes}};
    }
    pop();
  }
  return {};
}

void GlooLink::pop() {
  look_for_acknowledgements();
  const std::uint64_t place = popped_.load(std::memory_order_relaxed);
  const Prefix ahead = prefix(place);
  const std::uint64_t popped = place + (ahead.kind == Kind::head ? 2 : 1);
  popped_.store(popped);
  owes_ = owes_ || ahead.wanted_back || popped - told_ >= kPlaces / 2;
  // Where there is no room even for that, the peer has frames on their way that make some, and it is said then.
  if (owes_ && written_ - acknowledged_ < kPlaces) send_head({}, {}, {});
}

// --- the end ---

std::optional<std::string> GlooLink::closed() {
  if (!is_end()) return std::nullopt;
  return "has died: its connection closed";
}

void GlooLink::close() noexcept {
  if (is_closed_) return;
  is_closed_ = true;
  in_.close();
  out_.close();
  // Gloo wakes who waits for a message only when somebody finds the connection closed on sending.
  unless_closed([&] { in_.createSendBuffer(kSlot + 1, nullptr, 0)->send(); });
}

}  // namespace tutti::c10d
