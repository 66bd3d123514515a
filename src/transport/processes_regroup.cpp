// How some ranks of a world of processes form a new one: each tells all others which members it brings, and when a
// rank has heard the same list from all of its members, the new world stands. Nobody is in charge, so it works whoever
// is lost.
//
// A round is the k-th time that members bring a list. A round that fails, because a member is late or lost or because
// two lists wait for each other, fails for all: those who come to it later are told of it once, and are then in step.
#include <algorithm>

#include <fmt/format.h>

#include "members.hpp"
#include "processes_world.hpp"

namespace tutti::processes {
namespace {

// A failure among the ranks of a world, in the numbers of the one that `members` form.
Failure seen_from(const std::vector<Rank>& members, Failure failure) {
  std::vector<Rank> ranks;
  for (Rank rank : failure.ranks) {
    const auto found = std::ranges::find(members, rank);
    if (found != members.end()) ranks.push_back(Rank{static_cast<int>(found - members.begin())});
  }
  failure.ranks = ranks;
  return failure;
}

// The same on all members, and hardly ever the same for two worlds.
std::uint64_t id_of(std::uint64_t parent, const Round& round) {
  std::uint64_t id = parent;
  const auto mix = [&](std::uint64_t value) {
    id = (id ^ value) * 0x9e3779b97f4a7c15;
    id ^= id >> 29;
  };
  mix(round.number);
  for (Rank member : round.members) mix(static_cast<std::uint64_t>(member.value) + 1);
  return id | 2;  // never the first world's
}

}  // namespace

bool World::has_brought(Rank rank, const Round& round) {
  const auto found = place(rank).brought.find(round.members);
  return found != place(rank).brought.end() && found->second >= round.number;
}

bool World::still_waits_with(Rank rank, const Round& round) {
  return place(rank).last_brought == round && !refused_.contains(round);
}

// Links are not equally quick: a rank may hear that another comes again before it hears why the round before failed,
// which may have been its own.
bool World::knows_what_came_before(const Round& round) {
  const Round before{round.members, round.number - 1};
  return before.number == 0 || refused_.contains(before) ||
         std::ranges::all_of(before.members, [&](Rank member) { return has_brought(member, before); });
}

void World::refuse(const Failure& failure, const std::vector<Round>& rounds) {
  const bool told_now = std::ranges::any_of(rounds, [&](const Round& round) { return still_waits_with(rank_, round); });
  for (const Round& round : rounds) {
    refused_.try_emplace(round, failure);
    // Some may have heard from all, and gone ahead, before one of them gave up.
    for (const auto& weak : descendants_) {
      const std::shared_ptr<World> world = weak.lock();
      if (world && world->id() == id_of(id_, round)) world->break_up(seen_from(round.members, failure));
    }
    // Who hears of it by one of the lists need not hear of it by another.
    if (told_now && std::ranges::find(round.members, rank_) != round.members.end()) {
      told_[round.members] = std::max(told_[round.members], round.number);
    }
  }
}

// Two lists cannot both come true where each waits for a rank that waits with the other. A list that merely overlaps
// may be one that its members come to next.
void World::look_for_disagreement(const Round& mine) {
  for (Rank other : mine.members) {
    const std::optional<Round>& theirs = place(other).last_brought;
    if (!theirs || *theirs == mine || has_brought(other, mine) || refused_.contains(*theirs)) continue;
    if (!knows_what_came_before(*theirs)) continue;
    const auto waits_for_us = std::ranges::find_if(
        theirs->members, [&](Rank member) { return !has_brought(member, *theirs) && still_waits_with(member, mine); });
    if (waits_for_us == theirs->members.end()) continue;
    std::vector<Rank> with_mine;
    std::vector<Rank> with_theirs;
    for (Rank rank : all_ranks(size())) {
      if (still_waits_with(rank, mine)) with_mine.push_back(rank);
      if (still_waits_with(rank, *theirs)) with_theirs.push_back(rank);
    }
    const Failure failure{FailureKind::disagreement,
                          {other},
                          fmt::format("the members of the new world differ: {} on {}, {} on {}", list_of(mine.members),
                                      to_string(with_mine), list_of(theirs->members), to_string(with_theirs))};
    const std::vector<Round> rounds{mine, *theirs};
    Packer body;
    body.failure(failure);
    body.number(rounds.size());
    for (const Round& round : rounds) {
      body.number(round.number);
      body.ranks(round.members);
    }
    post_to_all({.world = id_, .kind = FrameKind::refuse}, body.bytes());
    return refuse(failure, rounds);
  }
}

std::shared_ptr<World> World::regroup(const std::vector<Rank>& members, Deadline deadline) {
  refuse_wrong_members(members, rank_);
  std::unique_lock lock(mesh_->mutex());
  // Before anything else: whoever hears that lists differ would not hear which of them cannot come true.
  std::vector<Rank> gone;
  std::ranges::copy_if(members, std::back_inserter(gone), [&](Rank member) { return is_gone(member); });
  if (!gone.empty()) throw PeerError(lost_with_lock(gone));
  const Round round{members, ++told_[members]};
  place(rank_).brought[members] = round.number;
  place(rank_).last_brought = round;
  Packer body;
  body.number(round.number);
  body.ranks(members);
  post_to_all({.world = id_, .kind = FrameKind::join}, body.bytes());

  const auto complete = [&] {
    return std::ranges::all_of(members, [&](Rank member) { return has_brought(member, round); });
  };
  const auto absent = [&](bool only_gone) {
    std::vector<Rank> ranks;
    for (Rank member : members) {
      if (!has_brought(member, round) && (!only_gone || is_gone(member))) ranks.push_back(member);
    }
    return ranks;
  };
  const auto ready = [&] {
    if (complete() || refused_.contains(round)) return true;
    look_for_disagreement(round);
    return refused_.contains(round) || !absent(/*only_gone=*/true).empty();
  };
  const bool in_time = mesh_->wait(lock, ready, deadline);
  if (!complete() && !refused_.contains(round)) {
    Failure why = in_time ? lost_with_lock(absent(true)) : Failure{FailureKind::late, absent(false), ""};
    if (!in_time) why.message = fmt::format("{} did not come to form the new world in time", to_string(why.ranks));
    Packer refusal;
    refusal.failure(why);
    refusal.number(1);
    refusal.number(round.number);
    refusal.ranks(round.members);
    post_to_all({.world = id_, .kind = FrameKind::refuse}, refusal.bytes());
    refuse(why, {round});
  }
  place(rank_).last_brought.reset();
  if (const auto refused = refused_.find(round); refused != refused_.end()) throw PeerError(refused->second);
  std::vector<int> processes;
  for (Rank member : members) processes.push_back(process(member));
  auto world = std::make_shared<World>(mesh_, id_of(id_, round), std::move(processes));
  mesh_->add_world(world);
  std::erase_if(descendants_, [](const auto& past) { return past.expired(); });
  descendants_.push_back(world);
  return world;
}

}  // namespace tutti::processes
