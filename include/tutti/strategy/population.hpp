// Population-based training (Jaderberg et al., 2017): members that learn their hyper-parameters from each other.
// docs/population.md tells it for people.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include <tutti/strategy/data_parallel.hpp>

namespace tutti::strategy {

// --- who takes over from whom ---

// The worst of this share take over from the best of it, drawn at random; at least one of two, and at most half.
struct Truncation {
  double fraction = 0.2;
  friend bool operator==(const Truncation&, const Truncation&) = default;
};

// A member takes over from another, drawn at random, that is better by more than this.
struct Binary {
  double threshold = 0;
  friend bool operator==(const Binary&, const Binary&) = default;
};

// A member takes over from another, drawn at random, that is better beyond chance: Welch's t-test of the scores of
// both.
struct WelchTTest {
  double significance = 0.05;  // optional: how likely such a difference may be by chance
  std::int64_t scores =
      10;  // optional: how many of each are compared; validation rows are dealt out into so many parts
  friend bool operator==(const WelchTTest&, const WelchTTest&) = default;
};

// Nobody: a random search with the same budget.
struct None {
  friend bool operator==(const None&, const None&) = default;
};

using ExploitStrategy = std::variant<Truncation, Binary, WelchTTest, None>;

// --- what becomes of the hyper-parameters of who took over ---

// Times a number from [1 - factor, 1 + factor], whatever the scale; back to the end of the range where it leaves it.
struct Perturbation {
  double factor = 0.2;
  double resample = 0;  // optional: how likely it is that one is drawn anew from the search space instead
  friend bool operator==(const Perturbation&, const Perturbation&) = default;
};

// Drawn anew from the search space.
struct Resample {
  friend bool operator==(const Resample&, const Resample&) = default;
};

// Plus a normal number: sigma is a share of the range, along its scale.
struct Noise {
  double sigma = 0.1;
  double resample = 0;  // optional, as above
  friend bool operator==(const Noise&, const Noise&) = default;
};

using ExploreStrategy = std::variant<Perturbation, Resample, Noise>;

// --- how ---

// What a member takes over.
enum class MemberPart { weights, optimizer_state, hyper_parameters };

// Whether all wait for the last of a generation, or each goes on as soon as it has been evaluated.
enum class Pace { in_step, asynchronous };

// How long a generation is: so many times over the rows, or so many steps. All optional.
struct GenerationLength {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;  // in place of epochs, where above 0
  friend bool operator==(const GenerationLength&, const GenerationLength&) = default;
};

struct PopulationBased {
  std::int64_t population_size = 1;
  std::int64_t generations = 1;
  ExploitStrategy exploit = Truncation{};
  ExploreStrategy explore = Perturbation{};
  // The rest is optional.
  Inner inner = Local{};
  GenerationLength generation = {};
  std::vector<MemberPart> copy = {MemberPart::weights, MemberPart::optimizer_state, MemberPart::hyper_parameters};
  Pace pace = Pace::in_step;
  std::int64_t threads = 0;  // cores for members that train at the same time; those that there are, where 0
  std::int64_t idle = 8;     // members that are not training and stay in memory; the others lie in files
  friend bool operator==(const PopulationBased&, const PopulationBased&) = default;
};

bool contains(const std::vector<MemberPart>& parts, MemberPart part);
// In files: "optimizer_state".
std::string_view part_name(MemberPart part);

}  // namespace tutti::strategy
