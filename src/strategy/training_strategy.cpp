#include <tutti/strategy/training_strategy.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

using nlohmann::ordered_json;

// --- one line for people ---

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string brief_alternative(const ordered_json& object);

// A string without its quotes, {"TopK": 0.01} as "TopK:0.01", anything else as in JSON.
std::string brief(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.begin().key() == "method") return brief_alternative(value);
  if (value.is_object()) return fmt::format("{}:{}", value.begin().key(), brief(value.front()));
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// {"method": "FedProx", "mu": 0.01} as "FedProx (mu 0.01)"; the name comes first.
std::string brief_alternative(const ordered_json& object) {
  std::vector<std::string> fields;
  for (auto field = std::next(object.begin()); field != object.end(); ++field)
    fields.push_back(fmt::format("{} {}", field.key(), brief(field.value())));
  const std::string name = brief(object.front());
  return fields.empty() ? name : fmt::format("{} ({})", name, fmt::join(fields, ", "));
}

std::string line(const strategy::Local&) { return "Local"; }

std::string line(const strategy::DataParallel& its) {
  const ordered_json json = to_json(its);
  std::string more;
  if (its.sync_every > 1) more += fmt::format(", every {} steps", its.sync_every);
  if (json.contains("outer")) more += fmt::format(" by {}", brief_alternative(json.at("outer")));
  return fmt::format("DataParallel: {}, {}{}", counted(its.num_replicas, "replica"),
                     brief_alternative(json.at("aggregation")), more);
}

std::string line(const strategy::ModelParallel& its) {
  const std::string parts = its.auto_partition.workers > 0 ? fmt::format("partitions to be found for {}",
                                                                         counted(its.auto_partition.workers, "worker"))
                                                           : counted(std::ssize(its.partitions), "partition");
  return fmt::format("ModelParallel: {}, {}{}", parts, brief_alternative(to_json(its).at("communication")),
                     its.recompute ? ", recomputed" : "");
}

std::string inner_part(const strategy::Inner& inner) {
  const auto* data_parallel = std::get_if<strategy::DataParallel>(&inner);
  return data_parallel == nullptr ? "" : fmt::format(", each {}", line(*data_parallel));
}

std::string line(const strategy::Federated& its) {
  const ordered_json json = to_json(its);
  std::string more;
  if (json.contains("round")) more += fmt::format(", {}", brief_alternative(json.at("round")));
  if (its.local.steps > 0)
    more += fmt::format(", {} a client", counted(its.local.steps, "step"));
  else if (its.local.epochs != 1)
    more += fmt::format(", {} a client", counted(its.local.epochs, "epoch"));
  if (json.contains("compression")) more += fmt::format(", {}", brief(json.at("compression")));
  return fmt::format("Federated: {}, {}, {}, {}{}{}", counted(its.num_clients, "client"), counted(its.rounds, "round"),
                     brief_alternative(json.at("aggregation")), brief_alternative(json.at("client_selection")), more,
                     inner_part(its.inner));
}

std::string line(const strategy::PopulationBased& its) {
  const ordered_json json = to_json(its);
  const std::string length =
      its.generation.steps > 0 ? counted(its.generation.steps, "step") : counted(its.generation.epochs, "epoch");
  return fmt::format(
      "PopulationBased: {}, {} of {}{}, {}, {}{}", counted(its.population_size, "member"),
      counted(its.generations, "generation"), length, its.pace == strategy::Pace::asynchronous ? ", asynchronous" : "",
      brief_alternative(json.at("exploit")), brief_alternative(json.at("explore")), inner_part(its.inner));
}

std::string line(const strategy::Custom& its) { return fmt::format("Custom: {}", its.coordinator); }

// --- what may be inside what ---

struct MayBeInside {
  std::string_view name;  // of the one that may, if any
  std::string_view why;
};

// In the order of the variant.
constexpr std::array<MayBeInside, std::variant_size_v<TrainingStrategy>> kMayBeInside = {{
    {"", "one worker trains all of it"},
    {"Local", "for parameters that are private to each replica"},
    {"DataParallel", "for a stage that is replicated"},
    {"Local", "for parameters that stay on the client; the strategy of each client is the field \"inner\""},
    {"", "the strategy of each member is the field \"inner\""},
    {"", "its coordinator trains all of it"},
}};

}  // namespace

bool strategy::contains(const std::vector<MemberPart>& parts, MemberPart part) {
  return std::ranges::find(parts, part) != parts.end();
}

std::string to_string(const TrainingStrategy& strategy) {
  return std::visit([](const auto& its) { return line(its); }, strategy);
}

bool is_distributed(const TrainingStrategy& strategy) { return !std::holds_alternative<strategy::Local>(strategy); }

// Ranges stand in one place: where JSON is read.
void validate(const TrainingStrategy& strategy) {
  const ordered_json json = to_json(strategy);
  const std::string name(name_of(strategy));
  const ordered_json by_pointer = json.flatten();  // "/aggregation/mu"
  for (const auto& [pointer, value] : by_pointer.items()) {
    if (!value.is_number_float() || std::isfinite(value.get<double>())) continue;
    std::string path = pointer.substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    throw UsageError(fmt::format("{}: {}: expected a finite number, found {}", name, path, value.get<double>()));
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const ordered_json::type_error&) {
    throw UsageError(fmt::format("{}: a string in it is not UTF-8", name));
  }
  try {
    training_strategy_from_json(JsonDocument::parse(text, name).root());
  } catch (const UsageError& error) {
    // "DataParallel:1:40: num_replicas: ...", without the place in a text that nobody has seen.
    const std::string_view what = error.what();
    throw UsageError(fmt::format("{}{}", name, what.substr(what.find(": "))));
  }
}

std::optional<std::string> why_not_inside(const TrainingStrategy& outer, const TrainingStrategy& inner) {
  const MayBeInside& allowed = kMayBeInside[outer.index()];
  if (inner == outer || name_of(inner) == allowed.name) return std::nullopt;
  return fmt::format("{} cannot be inside {}{}: {}, {}", name_of(inner),
                     inner.index() == outer.index() ? "a different " : "", name_of(outer),
                     allowed.name.empty() ? "nothing else can" : fmt::format("only {} can", allowed.name), allowed.why);
}

}  // namespace tutti
