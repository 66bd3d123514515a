// How some ranks of a world form a new one: each brings the list of members, and when all have brought the same the new
// world stands.
#include <algorithm>

#include <fmt/format.h>

#include "members.hpp"
#include "threads_world.hpp"

namespace tutti::threads {

bool Regrouping::has_joined(Rank rank) const { return std::ranges::find(joined, rank) != joined.end(); }

std::shared_ptr<Regrouping> World::join(Rank rank, const std::vector<Rank>& members) {
  using State = Regrouping::State;
  std::shared_ptr<Regrouping> mine;
  for (const auto& candidate : regroupings) {
    if (candidate->members != members) continue;
    if (candidate->state.load() == State::gathering && !candidate->has_joined(rank)) mine = candidate;
    if (candidate->state.load() == State::failed && std::erase(*candidate->still_to_tell, rank) > 0) {
      mine = candidate;
      if (candidate->still_to_tell->empty()) {
        std::erase_if(regroupings, [&](const auto& other) { return other->still_to_tell == mine->still_to_tell; });
      }
      return mine;
    }
  }
  if (!mine) {
    mine = std::make_shared<Regrouping>();
    mine->members = members;
    regroupings.push_back(mine);
  }
  mine->joined.push_back(rank);
  look_for_disagreement(*mine, rank);
  if (mine->state.load() == State::gathering && mine->joined.size() == members.size()) {
    mine->result = std::make_shared<World>(static_cast<int>(members.size()), shared_memory, patience);
    std::erase_if(descendants, [](const Descendant& past) { return past.world.expired(); });
    descendants.push_back({mine->result, members});
    mine->state.store(State::complete);
    std::erase(regroupings, mine);
  }
  return mine;
}

// Two lists cannot both come true where each waits for a rank that waits with the other. A list that merely overlaps
// may be one that its members come to next.
void World::look_for_disagreement(Regrouping& mine, Rank rank) {
  using State = Regrouping::State;
  for (const auto& other : regroupings) {
    if (other->members == mine.members || other->state.load() != State::gathering) continue;
    const bool we_wait = std::ranges::any_of(mine.members, [&](Rank member) { return other->has_joined(member); });
    const bool they_wait = std::ranges::any_of(other->members, [&](Rank member) { return mine.has_joined(member); });
    if (!we_wait || !they_wait) continue;
    if (!mine.still_to_tell) {
      mine.still_to_tell = std::make_shared<std::vector<Rank>>();
      mine.failure = {FailureKind::disagreement,
                      {rank},
                      fmt::format("the members of the new world differ: {} on {}, {} on {}", list_of(mine.members),
                                  to_string(mine.joined), list_of(other->members), to_string(other->joined))};
    }
    other->still_to_tell = mine.still_to_tell;
    other->failure = mine.failure;
    for (Rank member : other->members) {
      if (!other->has_joined(member) && !mine.has_joined(member)) mine.still_to_tell->push_back(member);
    }
    other->state.store(State::failed);
  }
  if (!mine.still_to_tell) return;
  for (Rank member : mine.members) {
    const bool told = std::ranges::any_of(regroupings, [&](const auto& other) {
      return other->still_to_tell == mine.still_to_tell && other->has_joined(member);
    });
    if (!told && !mine.has_joined(member)) mine.still_to_tell->push_back(member);
  }
  std::ranges::sort(*mine.still_to_tell);
  const auto doubled = std::ranges::unique(*mine.still_to_tell);
  mine.still_to_tell->erase(doubled.begin(), doubled.end());
  mine.state.store(State::failed);
  if (!mine.still_to_tell->empty()) return;
  std::erase_if(regroupings, [&](const auto& other) { return other->still_to_tell == mine.still_to_tell; });
}

std::shared_ptr<World> World::regroup(Rank rank, const std::vector<Rank>& members, Deadline deadline) {
  refuse_wrong_members(members, rank);

  const auto gone = [&] {
    std::vector<Rank> ranks;
    for (Rank member : members) {
      if (place(member).gone.load()) ranks.push_back(member);
    }
    return ranks;
  };
  // Before anything else: whoever hears that lists differ would not hear which of them cannot come true.
  if (const std::vector<Rank> ranks = gone(); !ranks.empty()) throw PeerError(lost(ranks));

  using State = Regrouping::State;
  std::shared_ptr<Regrouping> mine;
  {
    const std::lock_guard lock(mutex);
    mine = join(rank, members);
  }
  ring_all();
  const auto ready = [&] { return mine->state.load() != State::gathering || !gone().empty(); };
  const bool in_time = place(rank).doorbell.wait(ready, deadline, patience);
  if (mine->state.load() == State::gathering) {
    Failure why = in_time ? lost(gone()) : Failure{FailureKind::late, {}, ""};
    const std::lock_guard lock(mutex);
    if (mine->state.load() == State::gathering) {
      if (!in_time) {
        std::ranges::copy_if(members, std::back_inserter(why.ranks),
                             [&](Rank member) { return !mine->has_joined(member); });
        why.message = fmt::format("{} did not come to form the new world in time", to_string(why.ranks));
      }
      mine->failure = std::move(why);
      mine->state.store(State::failed);
      std::erase(regroupings, mine);
    }
  }
  ring_all();
  if (mine->state.load() == State::failed) {
    const std::lock_guard lock(mutex);
    throw PeerError(mine->failure);
  }
  return mine->result;
}

}  // namespace tutti::threads
