// The layouts of a parameter set as numbers, to go ahead of its arrays where these travel.
//
//   std::vector<std::int64_t> words = layout_words(set);
//   ParameterSet other = set_with_layouts(words);          // the same names, shapes and types, and zeros
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/base/parameter_set.hpp>

namespace tutti {

std::vector<std::int64_t> layout_words(const ParameterSet& set);
ParameterSet set_with_layouts(std::span<const std::int64_t> words);

}  // namespace tutti
