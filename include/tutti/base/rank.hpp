// Who takes part: a rank is a participant's index, from 0 to the number of participants less one.
//
//   Rank root{0};
//   for (Rank peer : all_ranks(world.size())) ...
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace tutti {

struct Rank {
  int value = 0;

  friend constexpr auto operator<=>(Rank, Rank) = default;
};

// Tells messages between the same two ranks apart. Messages of one tag arrive in the order they were sent.
// Tags from kFirstInternalTag up are tutti's own.
struct Tag {
  std::uint64_t value = 0;

  friend constexpr auto operator<=>(Tag, Tag) = default;
};

inline constexpr std::uint64_t kFirstInternalTag = std::uint64_t{1} << 63;

// Ranks 0 to size-1, in order.
class RankRange {
 public:
  class Iterator {
   public:
    using value_type = Rank;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;

    constexpr Iterator() = default;
    constexpr explicit Iterator(int value) : value_(value) {}

    constexpr Rank operator*() const { return Rank{value_}; }
    constexpr Iterator& operator++() {
      ++value_;
      return *this;
    }
    constexpr Iterator operator++(int) { return Iterator(value_++); }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    int value_ = 0;
  };

  constexpr explicit RankRange(int size) : size_(size) {}
  constexpr Iterator begin() const { return Iterator(0); }
  constexpr Iterator end() const { return Iterator(size_); }

 private:
  int size_;
};

constexpr RankRange all_ranks(int size) { return RankRange(size); }
std::vector<Rank> all_ranks_but(Rank rank, int size);

// "rank 2", "ranks 0 and 3", "ranks 0, 1 and 3".
std::string to_string(Rank rank);
std::string to_string(const std::vector<Rank>& ranks);

}  // namespace tutti

template <>
struct std::hash<tutti::Rank> {
  std::size_t operator()(tutti::Rank rank) const noexcept { return std::hash<int>{}(rank.value); }
};
