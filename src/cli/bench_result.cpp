#include "cli/bench_result.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

namespace tutti::cli {

std::string to_string(const Place& place) {
  return fmt::format("{} on {} ranks", tutti::to_string(place.bytes), place.ranks);
}

double BenchResult::algorithm_bandwidth() const { return static_cast<double>(bytes.value) / timing.median; }

double BenchResult::bus_bandwidth() const {
  return algorithm == "ping-pong" ? algorithm_bandwidth() : algorithm_bandwidth() * 2 * (ranks - 1) / ranks;
}

std::string to_json_line(const BenchResult& result) {
  nlohmann::ordered_json line{{"engine", result.engine}, {"algorithm", result.algorithm}};
  if (!result.picked.empty()) line["picked"] = result.picked;
  line["ranks"] = result.ranks;
  line["bytes"] = result.bytes.value;
  line["seconds"] = result.timing.median;
  line["seconds_p10"] = result.timing.p10;
  line["seconds_p90"] = result.timing.p90;
  line["algorithm_bandwidth"] = result.algorithm_bandwidth();
  line["bus_bandwidth"] = result.bus_bandwidth();
  line["repetitions"] = result.timing.repetitions;
  line["calls_per_repetition"] = result.timing.batch;
  return line.dump();
}

BenchResult parse_bench_result(std::string_view line) {
  try {
    const nlohmann::json object = nlohmann::json::parse(line);
    return {.engine = object.at("engine"),
            .algorithm = object.at("algorithm"),
            .picked = object.value("picked", ""),
            .ranks = object.at("ranks"),
            .bytes = Bytes{object.at("bytes").get<std::uint64_t>()},
            .timing = {.median = object.at("seconds"),
                       .p10 = object.at("seconds_p10"),
                       .p90 = object.at("seconds_p90"),
                       .repetitions = object.at("repetitions"),
                       .batch = object.at("calls_per_repetition")}};
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("'{}' is no measured point: {}", line, error.what()));
  }
}

}  // namespace tutti::cli
