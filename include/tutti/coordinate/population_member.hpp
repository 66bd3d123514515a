// A member of a population, as its trainer sees it: whoever supplies train, evaluate, save and load can be trained as a
// population, with torch or without. Population (coordinate/population.hpp) does the rest.
//
//   struct Climber final : PopulationMember {
//     explicit Climber(const MemberTask& task) : slope(number_in(task.hyper_parameters, "slope")) {}
//     void load(const MemberState& state) override { place = state.weights.at("place").values<double>()[0]; }
//     void train(const MemberTask&) override { place += slope; }
//     MemberScore evaluate() override { return {.value = -place * place}; }
//     MemberState save() override { ... }
//     double slope, place = 1;
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/strategy/search_space.hpp>

namespace tutti {

// All that the next generation of a member goes on from. What others may take over in parts is told apart.
struct MemberState {
  ParameterSet weights = {};
  ParameterSet optimizer = {};  // empty: a new one for these weights
};

struct MemberScore {
  double value = 0;                        // one that is not finite: it has failed
  std::vector<double> samples = {};        // for WelchTTest: scores that this is the mean of
  std::vector<NamedNumber> measured = {};  // what else people may want to see
};

// One generation of one member.
struct MemberTask {
  std::int64_t member = 0;
  std::int64_t generation = 1;
  HyperParameters hyper_parameters = {};
  std::uint64_t seed = 0;                         // the member's own, the same in all generations
  std::shared_ptr<const MemberState> state = {};  // to go on from; nothing where it begins
  // To be called now and then while it trains: throws where the run is to end, and tells others that it goes on.
  std::function<void()> go_on = [] {};
};

// It is made for a task, on some thread, used by that one, and gone when it was saved.
class PopulationMember {
 public:
  virtual ~PopulationMember() = default;

  // Before `train`, where there is something to go on from.
  virtual void load(const MemberState& state) = 0;
  // For a generation.
  virtual void train(const MemberTask& task) = 0;
  virtual MemberScore evaluate() = 0;
  virtual MemberState save() = 0;
};

using MakeMember = std::function<std::unique_ptr<PopulationMember>(const MemberTask& task)>;

}  // namespace tutti
