#include "event_json.hpp"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace tutti::detail {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::vector<NamedNumber>& metrics) {
  Json json = Json::object();
  for (const NamedNumber& metric : metrics) json[metric.name] = metric.value;
  return json;
}

Json json_of(const event::RunStarted& run) {
  return {{"event", "run_started"},
          {"output", run.output},
          {"strategy", run.strategy},
          {"engine", run.engine},
          {"notes", run.notes},
          {"unit", run.unit},
          {"first_step", run.first_step},
          {"first_seconds", run.first_seconds},
          {"steps", run.steps},
          {"steps_per_epoch", run.steps_per_epoch},
          {"rows_per_step", run.rows_per_step}};
}

Json json_of(const event::StepEnded& step) {
  return {{"event", "step_ended"},
          {"step", step.step},
          {"epoch", step.epoch},
          {"seconds", step.seconds},
          {"loss", step.loss},
          {"lr", step.lr},
          {"rows", step.rows},
          {"times",
           {{"data", step.times.data},
            {"compute", step.times.compute},
            {"communication", step.times.communication},
            {"waiting", step.times.waiting}}},
          {"metrics", json_of(step.metrics)},
          {"counts", json_of(step.counts)}};
}

Json json_of(const event::EvaluationEnded& evaluation) {
  return {{"event", "evaluation_ended"},  {"step", evaluation.step},
          {"epoch", evaluation.epoch},    {"seconds", evaluation.seconds},
          {"split", evaluation.split},    {"rows", evaluation.rows},
          {"loss", evaluation.loss},      {"metrics", json_of(evaluation.metrics)},
          {"is_best", evaluation.is_best}};
}

// By path; a text that is no JSON stands for itself.
Json json_of(const std::vector<std::pair<std::string, std::string>>& hyper_parameters) {
  Json json = Json::object();
  for (const auto& [path, text] : hyper_parameters) {
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    json[path] = value.is_discarded() ? Json(text) : std::move(value);
  }
  return json;
}

Json json_of(const event::MemberEvaluated& member) {
  return {{"event", "member_evaluated"},
          {"generation", member.generation},
          {"member", member.member},
          {"score", member.score},
          {"failure", member.failure},
          {"parent", member.parent ? Json(*member.parent) : Json()},
          {"hyper_parameters", json_of(member.hyper_parameters)},
          {"measured", json_of(member.measured)},
          {"is_best", member.is_best}};
}

Json json_of(const event::GenerationWentOn& generation) {
  return {{"event", "generation_went_on"},
          {"generation", generation.generation},
          {"through", generation.through},
          {"members", generation.members}};
}

Json json_of(const event::GenerationEnded& generation) {
  return {{"event", "generation_ended"},
          {"generation", generation.generation},
          {"seconds", generation.seconds},
          {"score_name", generation.score_name},
          {"higher_is_better", generation.higher_is_better},
          {"best_score", generation.best_score},
          {"best_member", generation.best_member},
          {"median_score", generation.median_score},
          {"took_over", generation.took_over},
          {"failed", generation.failed}};
}

Json json_of(const event::CheckpointWritten& checkpoint) {
  return {{"event", "checkpoint_written"}, {"step", checkpoint.step}, {"path", checkpoint.path}};
}

Json json_of(const event::Warned& warning) { return {{"event", "warned"}, {"sentence", warning.sentence}}; }

Json json_of(const event::SpanEnded& span) {
  return {{"event", "span_ended"}, {"rank", span.rank},   {"kind", name_of(span.kind)},
          {"name", span.name},     {"begin", span.begin}, {"end", span.end}};
}

const char* name_of(event::RunEnded::Reason reason) {
  switch (reason) {
    case event::RunEnded::Reason::finished: return "finished";
    case event::RunEnded::Reason::stopped_early: return "stopped_early";
    case event::RunEnded::Reason::interrupted: break;
  }
  return "interrupted";
}

Json json_of(const event::RunEnded& run) {
  return {{"event", "run_ended"}, {"reason", name_of(run.reason)}, {"step", run.step}, {"seconds", run.seconds}};
}

}  // namespace

const char* name_of(event::SpanEnded::Kind kind) {
  switch (kind) {
    case event::SpanEnded::Kind::compute: return "compute";
    case event::SpanEnded::Kind::communication: return "communication";
    case event::SpanEnded::Kind::waiting: return "waiting";
    case event::SpanEnded::Kind::data: break;
  }
  return "data";
}

Json event_json(const Event& event) {
  return std::visit([](const auto& its) { return json_of(its); }, event);
}

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string value_text(const std::string& json) {
  const Json value = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : json;
}

}  // namespace tutti::detail
