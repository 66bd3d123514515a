#include <tutti/train/phase.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/options.hpp>

namespace tutti {
namespace {

// As many as a generation and a population may have: an epoch has up to a thousand million steps, and steps are
// counted.
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostStepsInAll = kMost * kMost;

RunPhase read_phase(const JsonValue& value) {
  if (!value.is_object()) throw value.expected(R"(a phase, as in {"epochs": 2, "set": {"optimizer.lr": 0.1}})");
  const Options options(value);
  RunPhase phase;
  phase.epochs = options.integer("epochs", {.min = 1, .max = kMost}, 0);
  phase.steps = options.integer("steps", {.min = 1, .max = kMost}, 0);
  if (phase.epochs > 0 && phase.steps > 0)
    throw value.at("steps").error("there are epochs, too; expected one of the two");
  if (phase.epochs == 0 && phase.steps == 0) throw value.error("expected epochs or steps");
  const std::int64_t most = phase.epochs > 0 ? kMost : kMostStepsInAll;
  if (const auto after = options.find("after")) phase.after = after->integer({.min = 0, .max = most});
  if (const auto of = options.find("of")) phase.of = of->integer({.min = 1, .max = most});
  if (const auto seed = options.find("seed")) phase.seed = seed->unsigned_integer();
  phase.new_optimizer = options.boolean("new_optimizer", false);
  phase.only_end = options.choice("evaluate", {"epochs", "end"}, "epochs") == "end";
  if (const auto set = options.find("set")) {
    if (!set->is_object()) throw set->expected(R"(values by their paths, as in {"optimizer.lr": 0.1})");
    phase.set = hyper_parameters_from_json(*set);
  }
  options.refuse_other_keys({});
  return phase;
}

// As much as `other` in steps of `phase`.
std::int64_t in_steps_of(const PhaseSteps& phase, const PhaseSteps& other) {
  if (phase.steps_per_epoch == other.steps_per_epoch) return other.count;
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(other.count) / static_cast<double>(other.steps_per_epoch) *
                static_cast<double>(phase.steps_per_epoch)));
}

}  // namespace

std::vector<RunPhase> phases_from_json(const JsonValue& value) {
  std::vector<RunPhase> phases;
  for (const JsonValue& one : value.elements()) phases.push_back(read_phase(one));
  if (phases.empty()) throw value.expected("at least one phase");
  return phases;
}

nlohmann::ordered_json to_json(const std::vector<RunPhase>& phases) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RunPhase& phase : phases) {
    nlohmann::ordered_json json;
    if (phase.epochs > 0) json["epochs"] = phase.epochs;
    if (phase.steps > 0) json["steps"] = phase.steps;
    if (phase.after) json["after"] = *phase.after;
    if (phase.of) json["of"] = *phase.of;
    if (phase.seed) json["seed"] = *phase.seed;
    if (phase.new_optimizer) json["new_optimizer"] = true;
    if (phase.only_end) json["evaluate"] = "end";
    json["set"] = to_json(phase.set);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<PhaseSteps> steps_of(const std::vector<RunPhase>& phases,
                                 const std::vector<std::int64_t>& steps_per_epoch) {
  std::vector<PhaseSteps> all;
  std::int64_t next = 0;  // where the rows are after the phase before, in its steps
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const RunPhase& phase = phases[i];
    const std::int64_t epoch = steps_per_epoch[i];
    // Nobody goes on in the middle of an epoch with batches of another size.
    if (i > 0 && epoch != steps_per_epoch[i - 1])
      next = (next + steps_per_epoch[i - 1] - 1) / steps_per_epoch[i - 1] * epoch;
    const std::int64_t unit = phase.epochs > 0 ? epoch : 1;
    const std::int64_t count = (phase.epochs > 0 ? phase.epochs : phase.steps) * unit;
    const std::int64_t first = phase.after ? *phase.after * unit : next;
    all.push_back({.first = first, .count = count, .total = phase.of.value_or(0) * unit, .steps_per_epoch = epoch});
    next = first + count;
  }
  // What is left, in steps of this phase.
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].total > 0) continue;
    all[i].total = all[i].first;
    for (std::size_t j = i; j < all.size(); ++j) all[i].total += in_steps_of(all[i], all[j]);
  }
  return all;
}

Calendar::Calendar(std::int64_t steps_per_epoch)
    : parts_{{.steps = {.count = std::numeric_limits<std::int64_t>::max(), .steps_per_epoch = steps_per_epoch}}} {}

Calendar::Calendar(const std::vector<RunPhase>& phases, const std::vector<PhaseSteps>& steps) {
  Part part;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    part.steps = steps[i];
    part.only_end = phases[i].only_end;
    parts_.push_back(part);
    const std::int64_t unit = steps[i].steps_per_epoch;
    part.before += steps[i].count;
    part.epochs_before += (steps[i].first + steps[i].count) / unit - steps[i].first / unit;
  }
}

const Calendar::Part& Calendar::part_of(std::int64_t step) const {
  const auto later = std::ranges::find_if(parts_, [&](const Part& part) { return part.before >= step; });
  return later == parts_.begin() ? *later : *std::prev(later);
}

std::int64_t Calendar::epoch_of(std::int64_t step) const {
  const Part& part = part_of(step);
  const PhaseSteps& its = part.steps;
  return part.epochs_before + (its.first + step - part.before - 1) / its.steps_per_epoch -
         its.first / its.steps_per_epoch + 1;
}

bool Calendar::is_end(std::int64_t step) const {
  const Part& part = part_of(step);
  const std::int64_t taken = step - part.before;
  return taken == part.steps.count || (!part.only_end && (part.steps.first + taken) % part.steps.steps_per_epoch == 0);
}

}  // namespace tutti
