#include "run_comparison.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/json.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/strategy/training_strategy.hpp>
#include <tutti/train/trainer.hpp>

#include "run_values.hpp"

namespace tutti::detail {
namespace {

using Json = nlohmann::ordered_json;
using PathTest = std::function<bool(const std::string& path)>;

void find_differences(const Json& one, const Json& other, const std::string& path, const PathTest& is_free,
                      std::vector<std::string>& found) {
  if (one == other || is_free(path)) return;
  if (!one.is_object() || !other.is_object()) {
    found.push_back(path);
    return;
  }
  Json all = one;
  all.update(other);
  for (const auto& [key, value] : all.items()) {
    find_differences(one.value(key, Json()), other.value(key, Json()), path.empty() ? key : path + "." + key, is_free,
                     found);
  }
}

// One replica is what many are, as far as it is told what is learnt, and how they add up is no matter either.
TrainingStrategy as_of_one_replica(const TrainingStrategy& strategy) {
  if (std::holds_alternative<strategy::Local>(strategy)) return strategy::DataParallel{};
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  if (parallel == nullptr) return strategy;
  strategy::DataParallel one = *parallel;
  one.num_replicas = 1;
  if (auto* all_reduce = std::get_if<strategy::AllReduce>(&one.aggregation)) {
    all_reduce->algorithm = Auto{};
    all_reduce->logical_shards = 0;
  }
  const auto* server = std::get_if<strategy::ParameterServer>(&one.aggregation);
  if (server != nullptr && server->consistency == strategy::Consistency::synchronous)
    one.aggregation = strategy::AllReduce{};
  return one;
}

// With what has its default left out. Nothing where the run is cut into stages, however it is cut.
Json whole_strategy_in(const Json& run) {
  const Json strategy = run.value("graph", Json::object()).value("strategy", Json());
  if (!strategy.is_object() || strategy.value("type", Json()) == "ModelParallel") return {};
  try {
    return to_json(
        as_of_one_replica(training_strategy_from_json(JsonDocument::parse(strategy.dump(), "strategy").root())));
  } catch (const UsageError&) {
    return strategy;  // of a checkpoint that another version has written
  }
}

// How many replicas or workers there are does not matter to what is learnt. What replicas, clients or members do, and
// what becomes of it, does; only how long the run is, and on how many threads, is left out.
void find_strategy_changes(const Json& before, const Json& now, std::vector<std::string>& found) {
  const Json one = whole_strategy_in(before);
  const Json other = whole_strategy_in(now);
  if (!one.is_object() || !other.is_object()) return;
  Json all = one;
  all.update(other);
  for (const auto& [key, value] : all.items()) {
    static constexpr std::array<std::string_view, 4> kFree{"rounds", "generations", "threads", "idle"};
    const bool is_free = std::ranges::find(kFree, key) != kFree.end();
    if (!is_free && one.value(key, Json()) != other.value(key, Json())) found.push_back("graph.strategy." + key);
  }
}

// A file that is not where it was, and has the same name now, is the same one.
void follow_moved_files(Json& before, const Json& now) {
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : now.items()) {
      if (before.contains(key)) follow_moved_files(before[key], value);
    }
  }
  if (before.is_array() && now.is_array()) {
    for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) follow_moved_files(before[i], now[i]);
  }
  if (!before.is_string() || !now.is_string()) return;
  const std::filesystem::path was = before.get<std::string>();
  const std::filesystem::path is = now.get<std::string>();
  std::error_code problem;
  if (was.is_absolute() && is.is_absolute() && was.filename() == is.filename() &&
      !std::filesystem::exists(was, problem))
    before = now;
}

// Where a file lies may differ from host to host.
void leave_folders_out(Json& value) {
  if (value.is_string()) value = std::filesystem::path(value.get<std::string>()).filename().string();
  if (value.is_structured()) {
    for (Json& one : value) leave_folders_out(one);
  }
}

// Rank 0's.
std::string broadcast_text(Communicator& world, const std::string& mine) {
  auto length = static_cast<std::int64_t>(mine.size());
  broadcast(world, std::span(&length, 1));
  std::vector<std::int32_t> letters(mine.begin(), mine.end());
  letters.resize(static_cast<std::size_t>(length));
  broadcast(world, letters);
  return {letters.begin(), letters.end()};
}

}  // namespace

std::vector<std::string> changes_since(const Json& before, const Json& now) {
  static constexpr std::array<std::string_view, 10> kFree{"output",          "checkpoints",   "workers",
                                                          "train.epochs",    "train.steps",   "train.evaluate_every",
                                                          "train.log_every", "train.best_by", "train.early_stopping",
                                                          "train.deadline"};
  std::vector<std::string> found;
  const auto is_free = [](const std::string& path) {
    return std::ranges::find(kFree, path) != kFree.end() || path.ends_with(".strategy");
  };
  find_differences(before, now, "", is_free, found);
  find_strategy_changes(before, now, found);
  return found;
}

void refuse_other_population(const Json& before, const Json& now) {
  const auto refuse_unless_same = [](const std::string& path, const Json& was, const Json& is) {
    const auto told = [](const Json& value) { return value.is_null() ? "nothing" : value.dump(); };
    if (was != is)
      throw UsageError(
          fmt::format("{}: the population was trained with {}, and this is {}; --output takes another folder", path,
                      told(was), told(is)));
  };
  const auto best_by = [](const Json& run) { return run.value("train", Json::object()).value("best_by", Json()); };
  // The loss, where no metric is meant.
  const auto judge = [&](const Json& run) {
    const Json by = best_by(run);
    for (const Json& metric : run.value("metrics", Json::array())) {
      const Json name = metric.is_object() ? metric.value("as", metric.value("name", Json())) : metric;
      if (by.is_null() || by == name) return metric;
    }
    return run.value("loss", Json());
  };
  const auto length = [](const Json& run) {
    const Json strategy = whole_strategy_in(run);
    return strategy.is_object() ? strategy.value("generation", Json("the usual length")) : Json();
  };
  const auto size = [](const Json& run) {
    const Json strategy = whole_strategy_in(run);
    return strategy.is_object() ? strategy.value("population_size", Json()) : Json();
  };
  // Rows are others where they come from elsewhere; what members may differ in says how they are trained with.
  const Json data = now.value("data", Json::object());
  Json data_before = before.value("data", Json::object());
  follow_moved_files(data_before, data);
  Json all_data = data;
  all_data.update(data_before);
  for (const auto& [key, value] : all_data.items()) {
    const std::string path = "data." + key;
    if (!may_change_between_phases(path))
      refuse_unless_same(path, data_before.value(key, Json()), data.value(key, Json()));
  }
  refuse_unless_same("seed", before.value("seed", Json()), now.value("seed", Json()));
  refuse_unless_same("train.best_by", best_by(before), best_by(now));
  refuse_unless_same("what train.best_by compares", judge(before), judge(now));
  refuse_unless_same("graph.strategy.population_size", size(before), size(now));
  refuse_unless_same("graph.strategy.generation", length(before), length(now));
}

void refuse_other_runs(Communicator& world, const Run& run) {
  Json mine = *run.resolved;
  leave_folders_out(mine);
  const Json first = Json::parse(broadcast_text(world, mine.dump()));
  std::vector<std::string> found;
  find_differences(
      first, mine, "", [](const std::string& path) { return path == "output"; }, found);  // rank 0's alone
  std::int64_t teller = found.empty() ? world.size() : world.rank().value;
  all_reduce(world, std::span(&teller, 1), {.op = ReduceOp::min});
  if (teller == world.size()) return;
  if (teller == world.rank().value)
    throw Error(
        fmt::format("this process has another run file than {}: {}", to_string(Rank{0}), fmt::join(found, ", ")));
  throw ToldElsewhere(fmt::format("{} has another run file", to_string(Rank{static_cast<int>(teller)})));
}

}  // namespace tutti::detail
