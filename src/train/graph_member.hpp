// A member of a population that is a run file's graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tutti/coordinate/population_member.hpp>
#include <tutti/train/phase.hpp>

#include "training.hpp"

namespace tutti::detail {

// A generation as a phase: what comes before it and how much there is in all follow from its number. Its values are
// those of the task.
RunPhase phase_of_generation(const strategy::PopulationBased& strategy, std::int64_t generation);

// What members share, also those that hang when the run has ended.
struct MemberGround {
  explicit MemberGround(const Training& population);
  MemberGround(const MemberGround&) = delete;
  MemberGround& operator=(const MemberGround&) = delete;

  Events nobody;
  TrainOptions options;
  Training training;  // of the run with the population
  Training going_on;  // the same for members that have weights
  strategy::PopulationBased strategy;
};

std::unique_ptr<PopulationMember> make_graph_member(const std::shared_ptr<const MemberGround>& ground,
                                                    const MemberTask& task);

}  // namespace tutti::detail
