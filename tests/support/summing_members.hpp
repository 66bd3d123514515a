// Members of a population that cost nothing, and what is made of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <tutti/base/random.hpp>
#include <tutti/coordinate/member_pool.hpp>
#include <tutti/coordinate/population.hpp>

namespace tutti::testing {

// Learns a sum of its hyper-parameter and of what it draws; keeps how often it trained with this optimizer.
class Summer : public PopulationMember {
 public:
  explicit Summer(const MemberTask& task) : rate_(number_in(task.hyper_parameters, "rate")) {}

  void load(const MemberState& state) override {
    sum_ = state.weights.at("sum").values<double>()[0];
    if (const NamedArray* trained = state.optimizer.find("trained")) trained_ = trained->values<std::int64_t>()[0];
  }
  void train(const MemberTask& task) override {
    RandomStream draws({task.seed, static_cast<std::uint64_t>(task.generation)});
    sum_ += rate_ + 0.01 * draws.normal();
    ++trained_;
  }
  MemberScore evaluate() override { return {.value = sum_, .samples = {sum_ - 0.1, sum_, sum_ + 0.1}}; }
  MemberState save() override {
    MemberState state;
    state.weights.add("sum", {}, std::span(&sum_, 1));
    state.optimizer.add("trained", {}, std::span(&trained_, 1));
    return state;
  }

 private:
  double rate_;
  double sum_ = 0;
  std::int64_t trained_ = 0;
};

inline SearchSpace rates() { return {{{"rate", search::Float{0.1, 1, Scale::log}}, {"kind", search::Int{1, 6}}}}; }

inline MemberThreadsOptions on_threads(int threads) {
  return {.make = [](const MemberTask& task) { return std::make_unique<Summer>(task); }, .threads = threads};
}

inline PopulationOptions options_for(strategy::PopulationBased strategy, std::uint64_t seed = 5) {
  return {.strategy = std::move(strategy), .space = rates(), .seed = seed};
}

// The kinds of populations that tests go through.
inline std::vector<strategy::PopulationBased> many_populations() {
  using strategy::MemberPart;
  std::vector<strategy::PopulationBased> all;
  for (const strategy::ExploitStrategy& exploit : std::vector<strategy::ExploitStrategy>{
           strategy::Truncation{.fraction = 0.3}, strategy::Binary{.threshold = 0.05}, strategy::WelchTTest{},
           strategy::None{}}) {
    for (const strategy::ExploreStrategy& explore : std::vector<strategy::ExploreStrategy>{
             strategy::Perturbation{.factor = 0.3, .resample = 0.2}, strategy::Resample{}, strategy::Noise{}}) {
      all.push_back({.population_size = 7, .generations = 6, .exploit = exploit, .explore = explore});
    }
  }
  all.push_back({.population_size = 6, .generations = 5, .copy = {MemberPart::weights}});
  all.push_back({.population_size = 6, .generations = 5, .copy = {MemberPart::hyper_parameters}});
  all.push_back({.population_size = 1, .generations = 3});
  return all;
}

}  // namespace tutti::testing
