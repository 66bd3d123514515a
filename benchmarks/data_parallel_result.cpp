#include "data_parallel_result.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

namespace tutti::bench {
namespace {

template <typename Read>
auto parse(std::string_view line, const char* what, const Read& read) {
  try {
    return read(nlohmann::json::parse(line));
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("'{}' is no {}: {}", line, what, error.what()));
  }
}

}  // namespace

std::strong_ordering operator<=>(const StepPlace& a, const StepPlace& b) {
  const auto order = [](const StepPlace& place) { return std::ranges::find(kStepModels, place.model); };
  if (order(a) != order(b)) return order(a) <=> order(b);
  if (a.model != b.model) return a.model <=> b.model;
  return a.batch <=> b.batch;
}

std::string to_string(const StepPlace& place) { return fmt::format("{}, batch {}", place.model, place.batch); }

std::string to_json_line(const StepResult& result) {
  return nlohmann::ordered_json{{"engine", result.engine},
                                {"model", result.model},
                                {"batch", result.batch},
                                {"seconds", result.timing.median},
                                {"seconds_p10", result.timing.p10},
                                {"seconds_p90", result.timing.p90},
                                {"threads", result.threads},
                                {"repetitions", result.timing.repetitions},
                                {"steps_per_repetition", result.timing.batch}}
      .dump();
}

std::string to_json_line(const MemoryResult& result) {
  return nlohmann::ordered_json{{"engine", result.engine},
                                {"model", result.model},
                                {"replicas", result.replicas},
                                {"batch", result.batch},
                                {"resident_bytes", result.resident_bytes},
                                {"parameter_bytes", result.parameter_bytes}}
      .dump();
}

std::string to_json_line(const AgreementResult& result) {
  return nlohmann::ordered_json{{"engine", result.engine}, {"peer", result.peer},
                                {"model", result.model},   {"batch", result.batch},
                                {"steps", result.steps},   {"largest_loss_difference", result.largest_loss_difference}}
      .dump();
}

std::string to_json_line(const AccuracyResult& result) {
  return nlohmann::ordered_json{{"engine", result.engine},
                                {"model", result.model},
                                {"batch", result.batch},
                                {"compression", result.compression},
                                {"epochs", result.epochs},
                                {"accuracy", result.accuracy},
                                {"gradient_bytes", result.gradient_bytes},
                                {"sent_bytes", result.sent_bytes}}
      .dump();
}

StepResult parse_step_result(std::string_view line) {
  return parse(line, "time of a step", [](const nlohmann::json& object) -> StepResult {
    return {.engine = object.at("engine"),
            .model = object.at("model"),
            .batch = object.at("batch"),
            .threads = object.at("threads"),
            .timing = {.median = object.at("seconds"),
                       .p10 = object.at("seconds_p10"),
                       .p90 = object.at("seconds_p90"),
                       .repetitions = object.at("repetitions"),
                       .batch = object.at("steps_per_repetition")}};
  });
}

MemoryResult parse_memory_result(std::string_view line) {
  return parse(line, "measured memory", [](const nlohmann::json& object) -> MemoryResult {
    return {.engine = object.at("engine"),
            .model = object.at("model"),
            .replicas = object.at("replicas"),
            .batch = object.at("batch"),
            .resident_bytes = object.at("resident_bytes"),
            .parameter_bytes = object.at("parameter_bytes")};
  });
}

AgreementResult parse_agreement_result(std::string_view line) {
  return parse(line, "comparison of losses", [](const nlohmann::json& object) -> AgreementResult {
    return {.engine = object.at("engine"),
            .peer = object.at("peer"),
            .model = object.at("model"),
            .batch = object.at("batch"),
            .steps = object.at("steps"),
            .largest_loss_difference = object.at("largest_loss_difference")};
  });
}

AccuracyResult parse_accuracy_result(std::string_view line) {
  return parse(line, "accuracy", [](const nlohmann::json& object) -> AccuracyResult {
    return {.engine = object.at("engine"),
            .model = object.at("model"),
            .batch = object.at("batch"),
            .compression = object.at("compression"),
            .epochs = object.at("epochs"),
            .accuracy = object.at("accuracy"),
            .gradient_bytes = object.at("gradient_bytes"),
            .sent_bytes = object.at("sent_bytes")};
  });
}

}  // namespace tutti::bench
