#include <tutti/coordinate/explore.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using search::Categorical;
using search::Float;
using search::Int;

// --- a range as numbers from 0 to 1, along its scale ---

double value_at(const Float& range, double share) {
  const auto along_log = [&](double part) { return range.min * std::pow(range.max / range.min, part); };
  double value = range.min + share * (range.max - range.min);
  if (range.scale == Scale::log) value = along_log(share);
  if (range.scale == Scale::reverse_log) value = range.min + range.max - along_log(1 - share);
  return std::clamp(value, range.min, range.max);
}

double share_of(const Float& range, double value) {
  const auto along_log = [&](double its) { return std::log(its / range.min) / std::log(range.max / range.min); };
  double share = (value - range.min) / (range.max - range.min);
  if (range.scale == Scale::log) share = along_log(value);
  if (range.scale == Scale::reverse_log) share = 1 - along_log(range.min + range.max - value);
  return std::clamp(share, 0.0, 1.0);
}

// Back from beyond an end, as a mirror would throw it.
double reflected(double share) {
  const double turns = std::fmod(std::abs(share), 2.0);
  return turns > 1 ? 2 - turns : turns;
}

// The whole number below or above, likelier the nearer it is: small steps add up to moves.
std::int64_t rounded_by_chance(double value, RandomStream& draws) {
  const double below = std::floor(value);
  return static_cast<std::int64_t>(below) + (draws.uniform() < value - below ? 1 : 0);
}

// --- drawn anew ---

std::string draw(const Float& range, RandomStream& draws) {
  return fmt::format("{}", value_at(range, draws.uniform()));
}

std::string draw(const Int& range, RandomStream& draws) {
  // Each has the room of half a number on both sides.
  const Float room{static_cast<double>(range.min) - 0.5, static_cast<double>(range.max) + 0.5, range.scale};
  const auto number = static_cast<std::int64_t>(std::llround(value_at(room, draws.uniform())));
  return fmt::format("{}", std::clamp(number, range.min, range.max));
}

std::string draw(const Categorical& range, RandomStream& draws) {
  return range.values[static_cast<std::size_t>(draws.below(range.values.size()))];
}

// --- moved ---

double moved(const Float& range, const strategy::Perturbation& how, double value, RandomStream& draws) {
  const double factor = 1 + how.factor * (2 * draws.uniform() - 1);
  return std::clamp(value * factor, range.min, range.max);
}

double moved(const Float& range, const strategy::Noise& how, double value, RandomStream& draws) {
  return value_at(range, reflected(share_of(range, value) + how.sigma * draws.normal()));
}

template <typename How>
std::string move(const Float& range, const How& how, const HyperParameter& its, RandomStream& draws) {
  return fmt::format("{}", moved(range, how, number_in({its}, its.path), draws));
}

template <typename How>
std::string move(const Int& range, const How& how, const HyperParameter& its, RandomStream& draws) {
  const Float ends{static_cast<double>(range.min), static_cast<double>(range.max), range.scale};
  const auto value = static_cast<double>(integer_in({its}, its.path));
  const std::int64_t number = rounded_by_chance(moved(ends, how, value, draws), draws);
  return fmt::format("{}", std::clamp(number, range.min, range.max));
}

// One before or one after; from an end, inwards.
template <typename How>
std::string move(const Categorical& range, const How&, const HyperParameter& its, RandomStream& draws) {
  const auto is_it = [&](const std::string& value) { return is_same_json(value, its.json); };
  const auto at = static_cast<std::size_t>(std::ranges::find_if(range.values, is_it) - range.values.begin());
  const bool is_up = at == 0 || (at + 1 < range.values.size() && draws.below(2) == 0);
  return range.values[is_up ? at + 1 : at - 1];
}

std::string next_value(const SearchDimension& dimension, const strategy::ExploreStrategy& how,
                       const HyperParameter& its, RandomStream& draws) {
  return std::visit(
      [&]<typename Range, typename How>(const Range& range, const How& its_way) {
        if constexpr (std::is_same_v<How, strategy::Resample>) {
          return draw(range, draws);
        } else {
          if (its_way.resample > 0 && draws.uniform() < its_way.resample) return draw(range, draws);
          return move(range, its_way, its, draws);
        }
      },
      dimension.range, how);
}

}  // namespace

HyperParameters draw_values(const SearchSpace& space, RandomStream& draws) {
  HyperParameters values;
  for (const SearchDimension* dimension : in_order(space)) {
    if (!is_active(*dimension, values)) continue;
    values.push_back(
        {dimension->path, std::visit([&](const auto& range) { return draw(range, draws); }, dimension->range)});
  }
  return values;
}

HyperParameters explore(const SearchSpace& space, const strategy::ExploreStrategy& how, const HyperParameters& values,
                        RandomStream& draws) {
  if (const auto why = why_not_in(space, values)) throw UsageError(*why);
  HyperParameters result;
  for (const SearchDimension* dimension : in_order(space)) {
    if (!is_active(*dimension, result)) continue;
    const HyperParameter* before = find_in(values, dimension->path);
    result.push_back(
        {dimension->path, before != nullptr
                              ? next_value(*dimension, how, *before, draws)
                              : std::visit([&](const auto& range) { return draw(range, draws); }, dimension->range)});
  }
  return result;
}

}  // namespace tutti
