#include "gossip_neighbours.hpp"

#include <algorithm>

#include <tutti/base/random.hpp>

namespace tutti::detail {
namespace {

constexpr std::uint64_t kMeetingDraws = 0x905519;

}  // namespace

GossipNeighbours::GossipNeighbours(strategy::Topology topology, int replicas, std::uint64_t seed)
    : topology_(topology),
      seed_(seed),
      is_lost_(static_cast<std::size_t>(replicas)),
      is_cut_off_(static_cast<std::size_t>(replicas)) {
  close_up();
}

int GossipNeighbours::living() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count(is_lost_, false));
}

bool GossipNeighbours::lives(int replica) const {
  const std::lock_guard lock(mutex_);
  return !is_lost_[static_cast<std::size_t>(replica)];
}

std::optional<int> GossipNeighbours::draw(int replica, std::uint64_t meeting) const {
  const std::lock_guard lock(mutex_);
  const auto place = std::ranges::find(members_, replica);
  if (place == members_.end()) return std::nullopt;
  const std::vector<int> others = mixing_->neighbours(static_cast<int>(place - members_.begin()));
  if (others.empty()) return std::nullopt;
  RandomStream draws({seed_, kMeetingDraws, static_cast<std::uint64_t>(replica), meeting});
  return members_[static_cast<std::size_t>(others[draws.below(others.size())])];
}

bool GossipNeighbours::lose(int replica) {
  const std::lock_guard lock(mutex_);
  if (is_lost_[static_cast<std::size_t>(replica)]) return false;
  is_lost_[static_cast<std::size_t>(replica)] = true;
  close_up();
  return true;
}

void GossipNeighbours::cut_off(const Slice& replicas) {
  const std::lock_guard lock(mutex_);
  for (std::size_t replica = replicas.first; replica < replicas.end(); ++replica) is_cut_off_[replica] = true;
  close_up();
}

// With the lock held.
void GossipNeighbours::close_up() {
  members_.clear();
  for (std::size_t i = 0; i < is_lost_.size(); ++i) {
    if (!is_lost_[i] && !is_cut_off_[i]) members_.push_back(static_cast<int>(i));
  }
  mixing_.reset();
  if (!members_.empty()) mixing_.emplace(topology_, MixingOptions{static_cast<int>(members_.size()), seed_});
}

}  // namespace tutti::detail
