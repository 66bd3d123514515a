// A population's history as a picture: scores, hyper-parameters and lineage by generation, as an SVG document.
//
//   write_file("population.svg", population_svg(history));
//
// Plain shapes and text, without scripts and fonts of its own. The same history gives the same document.
#pragma once

#include <string>

#include "population_history.hpp"

namespace tutti::detail {

// Of more than 200 generations every n-th is drawn, of more than 200 members the best; the picture says so.
std::string population_svg(const PopulationHistory& history);

}  // namespace tutti::detail
