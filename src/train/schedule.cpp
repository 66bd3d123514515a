#include <tutti/train/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <nlohmann/json.hpp>
#include <tutti/base/options.hpp>

namespace tutti {
namespace {

using namespace schedule;

constexpr std::int64_t kMostSteps = 1'000'000'000'000;

// From one value to another along half a wave, `share` of the way.
double half_wave(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

// How far the step is on the way to the last one; a run of one step is at its beginning.
double share_of(const ScheduleStep& at) {
  return at.steps <= 1 ? 0 : std::clamp(static_cast<double>(at.step) / static_cast<double>(at.steps - 1), 0.0, 1.0);
}

double factor(const Constant&, const ScheduleStep&) { return 1; }

double factor(const Step& its, const ScheduleStep& at) {
  const std::int64_t epoch = at.step / std::max<std::int64_t>(at.steps_per_epoch, 1);
  return std::pow(its.factor, static_cast<double>(epoch / its.every));
}

double factor(const Cosine& its, const ScheduleStep& at) { return half_wave(1, its.to, share_of(at)); }

double factor(const Linear& its, const ScheduleStep& at) { return std::lerp(1.0, its.to, share_of(at)); }

// As PyTorch counts: the last step of the rise is the peak.
double factor(const OneCycle& its, const ScheduleStep& at) {
  const double peak = std::max(its.rise * static_cast<double>(at.steps) - 1, 0.0);
  const auto step = static_cast<double>(at.step);
  if (step < peak) return half_wave(its.from, 1, step / peak);
  const double last = static_cast<double>(at.steps - 1);
  return last <= peak ? 1 : half_wave(1, its.to, std::min((step - peak) / (last - peak), 1.0));
}

constexpr NumberRange kShare{.min = 0, .max = 1};

Kind read_kind(const std::string& name, const Options& options) {
  if (name == "constant") return Constant{};
  if (name == "step") {
    return Step{.every = options.integer("every", {.min = 1, .max = kMostSteps}),
                .factor = options.number("factor", {.min = 0}, Step{}.factor)};
  }
  if (name == "cosine") return Cosine{.to = options.number("to", kShare, Cosine{}.to)};
  if (name == "linear") return Linear{.to = options.number("to", kShare, Linear{}.to)};
  return OneCycle{.rise = options.number("rise", kShare, OneCycle{}.rise),
                  .from = options.number("from", kShare, OneCycle{}.from),
                  .to = options.number("to", kShare, OneCycle{}.to)};
}

// By the order of the variant.
constexpr const char* kNames[] = {"constant", "step", "cosine", "linear", "one_cycle"};

}  // namespace

double rate_factor(const Schedule& schedule, const ScheduleStep& at) {
  if (at.step < schedule.warmup) return static_cast<double>(at.step + 1) / static_cast<double>(schedule.warmup + 1);
  // Epochs are counted from the beginning, everything else from the end of the warm-up on.
  if (const auto* step = std::get_if<Step>(&schedule.kind)) return factor(*step, at);
  const ScheduleStep rest{
      .step = at.step - schedule.warmup, .steps = at.steps - schedule.warmup, .steps_per_epoch = at.steps_per_epoch};
  return std::visit([&](const auto& its) { return factor(its, rest); }, schedule.kind);
}

Schedule schedule_from_json(const JsonValue& value) {
  const Options options(value);
  const JsonValue name = value.is_object() ? options.at("name") : value;
  Schedule schedule{.kind = read_kind(name.one_of({std::begin(kNames), std::end(kNames)}), options),
                    .warmup = options.integer("warmup", {.min = 0, .max = kMostSteps}, 0)};
  options.refuse_other_keys({"name"});
  return schedule;
}

nlohmann::ordered_json to_json(const Schedule& schedule) {
  nlohmann::ordered_json object{{"name", kNames[schedule.kind.index()]}};
  if (const auto* step = std::get_if<Step>(&schedule.kind))
    object.update({{"every", step->every}, {"factor", step->factor}});
  if (const auto* cosine = std::get_if<Cosine>(&schedule.kind)) object["to"] = cosine->to;
  if (const auto* linear = std::get_if<Linear>(&schedule.kind)) object["to"] = linear->to;
  if (const auto* cycle = std::get_if<OneCycle>(&schedule.kind))
    object.update({{"rise", cycle->rise}, {"from", cycle->from}, {"to", cycle->to}});
  if (schedule.warmup > 0) object["warmup"] = schedule.warmup;
  return object;
}

}  // namespace tutti
