// What the scripts of the transport's contract are made of.
//
//   const SendTicket ticket = transport.start_send(next_of(transport), Tag{1}, pattern(kLongBytes, 3));
//   EXPECT_TRUE(same(receive_all(transport, previous_of(transport), Tag{1}), pattern(kLongBytes, 3)));
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/transport/transport.hpp>

namespace tutti::testing {

inline const std::vector<int> kSizes{1, 2, 3, 5, 8};
// Longer than any link holds at a time.
inline constexpr std::size_t kLongBytes = std::size_t{5} << 20;

inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }
inline Deadline at_once() { return Deadline::after(std::chrono::milliseconds(5)); }

inline Rank next_of(const Transport& transport) { return Rank{(transport.rank().value + 1) % transport.size()}; }
inline Rank previous_of(const Transport& transport) {
  return Rank{(transport.rank().value + transport.size() - 1) % transport.size()};
}

// Made and compared by copies and comparisons of whole ranges, which are fast under every sanitizer. It repeats at no
// length that anything is cut into.
inline std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  constexpr std::size_t kPeriod = 8191;
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < std::min(bytes, kPeriod); ++i) {
    data[i] = static_cast<std::byte>(i * 31 + i / 256 * 17 + static_cast<std::size_t>(seed) * 7);
  }
  for (std::size_t done = kPeriod; done < bytes; done *= 2) {
    std::memcpy(data.data() + done, data.data(), std::min(done, bytes - done));
  }
  return data;
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline std::vector<std::byte> receive_all(Transport& transport, Rank from, Tag tag) {
  const Delivery delivery = transport.receive(from, tag, soon());
  std::vector<std::byte> data(delivery.header().length);
  delivery.copy_to(data);
  return data;
}

// Everybody has come, by messages alone.
inline void meet(Transport& transport, Tag tag) {
  for (Rank peer : all_ranks(transport.size())) send(transport, peer, tag, {}, soon());
  for (Rank peer : all_ranks(transport.size())) receive_all(transport, peer, tag);
}

template <typename F>
Failure failure_of(F f) {
  try {
    f();
  } catch (const PeerError& error) {
    return error.failure();
  }
  ADD_FAILURE() << "expected a PeerError";
  return {};
}

}  // namespace tutti::testing
