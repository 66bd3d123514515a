#include <tutti/train/phase.hpp>

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
  if (const auto set = options.find("set")) {
    if (!set->is_object()) throw set->expected(R"(values by their paths, as in {"optimizer.lr": 0.1})");
    phase.set = hyper_parameters_from_json(*set);
  }
  options.refuse_other_keys({});
  return phase;
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
    json["set"] = to_json(phase.set);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<PhaseSteps> steps_of(const std::vector<RunPhase>& phases,
                                 const std::vector<std::int64_t>& steps_per_epoch) {
  std::vector<PhaseSteps> all;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const RunPhase& phase = phases[i];
    const std::int64_t unit = phase.epochs > 0 ? steps_per_epoch[i] : 1;
    const std::int64_t count = (phase.epochs > 0 ? phase.epochs : phase.steps) * unit;
    all.push_back({.first = phase.after ? *phase.after * unit : before,
                   .count = count,
                   .total = phase.of.value_or(0) * unit,
                   .steps_per_epoch = steps_per_epoch[i]});
    before += count;
  }
  for (PhaseSteps& phase : all) {
    if (phase.total == 0) phase.total = before;
  }
  return all;
}

}  // namespace tutti
