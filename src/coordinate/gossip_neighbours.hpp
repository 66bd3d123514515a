// Who meets whom in gossip, among those who are left: a topology over the living, in their order.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/strategy/mixing.hpp>

namespace tutti::detail {

// Any thread.
class GossipNeighbours {
 public:
  GossipNeighbours(strategy::Topology topology, int replicas, std::uint64_t seed);

  int living() const;
  bool lives(int replica) const;
  // For the meeting of that number; nothing where there is nobody to meet.
  std::optional<int> draw(int replica, std::uint64_t meeting) const;

  // False where it was lost already.
  bool lose(int replica);
  // They live, and are not to be reached from here.
  void cut_off(const Slice& replicas);

 private:
  void close_up();

  strategy::Topology topology_;
  std::uint64_t seed_;
  mutable std::mutex mutex_;
  std::vector<bool> is_lost_;
  std::vector<bool> is_cut_off_;
  std::vector<int> members_;            // who meets, by number
  std::optional<MixingMatrix> mixing_;  // of these, by their place; none where there are none
};

}  // namespace tutti::detail
