// Hyper-parameters of a population: drawn from a search space, and changed within it. Pure: values in, values out, with
// a stream where they draw.
//
//   RandomStream draws({seed, member});
//   const HyperParameters first = draw_values(space, draws);
//   const HyperParameters next = explore(space, strategy::Perturbation{.factor = 0.2}, first, draws);
#pragma once

#include <tutti/base/random.hpp>
#include <tutti/strategy/population.hpp>
#include <tutti/strategy/search_space.hpp>

namespace tutti {

// Each evenly along its scale; whole numbers and categories are each as likely as the others on a linear one.
HyperParameters draw_values(const SearchSpace& space, RandomStream& draws);

// Values stay in their ranges, whole numbers stay whole, categories move to a neighbour or are drawn anew. Of a
// dimension whose condition has come to hold one is drawn; where it no longer holds, the value goes.
HyperParameters explore(const SearchSpace& space, const strategy::ExploreStrategy& how, const HyperParameters& values,
                        RandomStream& draws);

}  // namespace tutti
