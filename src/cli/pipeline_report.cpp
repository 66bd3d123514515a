#include "cli/pipeline_report.hpp"

#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/units.hpp"

namespace tutti::cli {
namespace {

void add_line(std::string& text, std::string_view label, std::string_view what) {
  fmt::format_to(std::back_inserter(text), "{:<12}{}\n", label, what);
}

std::string names_of(const Run& run, const std::vector<std::size_t>& nodes) {
  std::vector<std::string_view> names;
  for (const std::size_t node : nodes) names.push_back(run.graph.nodes()[node].path);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string micro_batches(std::int64_t count) { return fmt::format("{} micro-batch{}", count, count == 1 ? "" : "es"); }

std::string tell_stage(const Run& run, const PipelineForecast& forecast, std::size_t number) {
  const CutStage& stage = forecast.cut.stages[number];
  std::string text = forecast.cut.workers[static_cast<std::size_t>(stage.worker)].id;
  if (stage.replicas > 1) text += fmt::format(", replica {} of {}", stage.replica, stage.replicas);
  text += fmt::format(": {}", names_of(run, stage.nodes));
  if (forecast.stages.empty()) return text;
  return text + fmt::format("; {} forward, {} backward", format_seconds(forecast.stages[number].forward),
                            format_seconds(forecast.stages[number].backward));
}

std::string tell_traffic(const Run& run, const PipelineForecast& forecast, const PipelineTraffic& traffic) {
  const auto id = [&](int worker) { return forecast.cut.workers[static_cast<std::size_t>(worker)].id; };
  std::vector<std::string> kinds;
  if (traffic.values > 0) kinds.push_back(fmt::format("values {}", format_bytes(traffic.values)));
  if (traffic.gradients > 0) kinds.push_back(fmt::format("gradients {}", format_bytes(traffic.gradients)));
  if (traffic.parameters > 0) kinds.push_back(fmt::format("parameters of both {}", format_bytes(traffic.parameters)));
  return fmt::format("{} -> {}: {} a step{}", id(traffic.from), id(traffic.to), fmt::join(kinds, ", "),
                     traffic.nodes.empty() ? "" : fmt::format(", of {}", names_of(run, traffic.nodes)));
}

}  // namespace

std::string tell_pipeline(const Run& run, const PipelineForecast& forecast) {
  const auto id = [&](std::size_t worker) { return forecast.cut.workers[worker].id; };
  std::string text;
  for (std::size_t s = 0; s < forecast.cut.stages.size(); ++s)
    add_line(text, fmt::format("stage {}", s), tell_stage(run, forecast, s));
  bool is_first = true;
  for (const PipelineTraffic& traffic : traffic_of(run)) {
    add_line(text, is_first ? "traffic" : "", tell_traffic(run, forecast, traffic));
    is_first = false;
  }
  if (is_first) add_line(text, "traffic", "none");
  std::vector<std::string> live;
  for (std::size_t w = 0; w < forecast.live.size(); ++w) {
    live.push_back(fmt::format("{} {}, {}", id(w), micro_batches(forecast.live[w].micro_batches),
                               format_bytes(forecast.live[w].bytes)));
  }
  add_line(text, "live", fmt::format("at most {}", fmt::join(live, "; ")));
  if (forecast.stages.empty()) {
    add_line(text, "predicted",
             fmt::format("{} a step; how long was not measured", micro_batches(forecast.micro_batches)));
    return text;
  }
  std::vector<std::string> busy;
  for (std::size_t w = 0; w < forecast.busy.size(); ++w)
    busy.push_back(fmt::format("{} {}", id(w), format_seconds(forecast.busy[w])));
  add_line(text, "predicted",
           fmt::format("{} a step of {}, bubble {:.1f} %; busy: {}", format_seconds(forecast.seconds),
                       micro_batches(forecast.micro_batches), 100 * forecast.bubble, fmt::join(busy, ", ")));
  return text;
}

}  // namespace tutti::cli
