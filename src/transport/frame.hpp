// What processes say to each other over their links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/base/assert.hpp>
#include <tutti/base/error.hpp>
#include <tutti/transport/link.hpp>

namespace tutti::processes {

enum class FrameKind : std::uint8_t {
  // A message. A short one goes as it is; a long one is announced, and comes in pieces once it was asked for.
  eager,     // tag, id; the body is the payload
  announce,  // tag, id, length
  pull,      // id: send it
  expect,    // tag: when it comes to that, send it without being asked
  piece,     // id, offset; the body is a part of the payload
  recall,    // id: it was taken back
  drop,      // id: no more of it is wanted
  // A world.
  abort,   // the body is a Failure
  depart,  // the body says why
  ask,     // id: for whom are you waiting?
  answer,  // id, and in `tag` a rank plus 1, or 0
  join,    // the body is a regrouping
  refuse,  // the body is a Failure and the regroupings it ends
  // A process.
  heartbeat,
  goodbye,        // nothing more will come
  goodbye_heard,  // in answer to it
};

struct FrameHead {
  std::uint64_t world = 0;
  std::uint64_t tag = 0;
  std::uint64_t length = 0;
  std::uint64_t id = 0;
  std::uint64_t offset = 0;
  FrameKind kind = FrameKind::heartbeat;
  std::uint8_t unused[7] = {};
};
static_assert(sizeof(FrameHead) == Link::kHeadBytes);

struct Frame {
  FrameHead head;
  std::span<const std::byte> body;

  static Frame from(const FrameBytes& bytes) {
    Frame frame;
    TUTTI_ASSERT_EQ(bytes.head.size(), sizeof frame.head);
    std::memcpy(&frame.head, bytes.head.data(), sizeof frame.head);
    frame.body = bytes.body;
    return frame;
  }
  // The two in a row.
  static Frame from(std::span<const std::byte> bytes) {
    TUTTI_ASSERT(bytes.size() >= Link::kHeadBytes);
    return from({bytes.first(Link::kHeadBytes), bytes.subspan(Link::kHeadBytes)});
  }
};

// Puts numbers and texts one after the other; Unpacker takes them out in the same order.
class Packer {
 public:
  void number(std::uint64_t value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
  }
  // What somebody threw can be of any length, and a frame cannot.
  void text(std::string_view value) {
    value = value.substr(0, kMostText);
    number(value.size());
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), bytes, bytes + value.size());
  }
  void ranks(const std::vector<Rank>& values) {
    number(values.size());
    for (Rank rank : values) number(static_cast<std::uint64_t>(rank.value));
  }
  void failure(const Failure& value) {
    number(static_cast<std::uint64_t>(value.kind));
    ranks(value.ranks);
    text(value.message);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMostText = 16 * 1024;

  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    TUTTI_ASSERT(bytes_.size() >= sizeof value);
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  std::string text() {
    const std::uint64_t length = number();
    TUTTI_ASSERT(bytes_.size() >= length);
    std::string value(reinterpret_cast<const char*>(bytes_.data()), length);
    bytes_ = bytes_.subspan(length);
    return value;
  }
  std::vector<Rank> ranks() {
    std::vector<Rank> values(number());
    for (Rank& rank : values) rank.value = static_cast<int>(number());
    return values;
  }
  Failure failure() {
    Failure value;
    value.kind = static_cast<FailureKind>(number());
    value.ranks = ranks();
    value.message = text();
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace tutti::processes
