#include "event_json.hpp"

#include <variant>
#include <vector>

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

}  // namespace tutti::detail
