// Population-based training of something that is no graph: the toy of the paper (Jaderberg et al., 2017, figure 2).
// What counts is Q(t) = 1.2 - t0^2 - t1^2, and a member may only climb 1.2 - h0 t0^2 - h1 t1^2. With h fixed to (1, 0)
// or to (0, 1), one of both coordinates never moves, so that a search over these two ends with 0.39. Two members that
// take over each other's place, and change their h a little, come near the top at 1.2.
//
// What tutti asks of a member is train, evaluate, save and load.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include <tutti/coordinate/population.hpp>

namespace {

double quality(const std::array<double, 2>& t) { return 1.2 - t[0] * t[0] - t[1] * t[1]; }

class Climber final : public tutti::PopulationMember {
 public:
  explicit Climber(const tutti::MemberTask& task)
      : h_{tutti::number_in(task.hyper_parameters, "h0"), tutti::number_in(task.hyper_parameters, "h1")} {}

  void load(const tutti::MemberState& state) override {
    std::ranges::copy(state.weights.at("t").values<double>(), t_.begin());
  }
  void train(const tutti::MemberTask& task) override {
    for (int step = 0; step < 10; ++step) {
      task.go_on();
      for (std::size_t i = 0; i < 2; ++i) t_[i] -= 0.01 * 2 * h_[i] * t_[i];
    }
  }
  tutti::MemberScore evaluate() override { return {.value = quality(t_)}; }
  tutti::MemberState save() override {
    tutti::MemberState state;
    state.weights.add("t", {2}, std::span<const double>(t_));
    return state;
  }

 private:
  std::array<double, 2> h_;
  std::array<double, 2> t_ = {0.9, 0.9};
};

// The best Q after 200 steps.
double best_quality(const tutti::strategy::ExploitStrategy& exploit, std::uint64_t seed) {
  tutti::MemberThreads pool(
      {.make = [](const tutti::MemberTask& task) { return std::make_unique<Climber>(task); }, .threads = 2});
  tutti::Population population({.strategy = {.population_size = 2,
                                             .generations = 20,
                                             .exploit = exploit,
                                             .explore = tutti::strategy::Noise{.sigma = 0.1},
                                             .copy = {tutti::strategy::MemberPart::weights}},
                                .space = {{{"h0", tutti::search::Float{0, 1}}, {"h1", tutti::search::Float{0, 1}}}},
                                .seed = seed,
                                .first = {{{"h0", "1"}, {"h1", "0"}}, {{"h0", "0"}, {"h1", "1"}}}});
  return population.run(pool).best->score.value();
}

}  // namespace

int main() {
  constexpr std::uint64_t kSeeds = 100;
  std::vector<double> reached;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
    reached.push_back(best_quality(tutti::strategy::Binary{.threshold = 0}, seed));
  std::ranges::sort(reached);
  const double grid = best_quality(tutti::strategy::None{}, 0);
  std::printf("best Q of %zu populations: median %.4f, one in ten below %.4f; grid search %.4f\n", reached.size(),
              reached[kSeeds / 2], reached[kSeeds / 10], grid);
  return reached[kSeeds / 2] >= 1.15 && reached[kSeeds / 10] >= 1.10 && grid > 0.3897 && grid < 0.3898 ? 0 : 1;
}
