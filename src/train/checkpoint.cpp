#include <tutti/train/checkpoint.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/safetensors.hpp>
#include <tutti/train/stepper.hpp>

namespace tutti {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kStateKey = "tutti.train";
constexpr const char* kRunKey = "tutti.run";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::string file_name(std::int64_t step) { return fmt::format("{}{:09}{}", kPrefix, step, kSuffix); }

std::optional<std::int64_t> step_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* end = name.data() + name.size() - kSuffix.size();
  std::int64_t step = 0;
  const auto [stopped, problem] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (problem != std::errc() || stopped != end) return std::nullopt;
  return step;
}

Json json_of(const std::optional<double>& number) { return number ? Json(*number) : Json(); }

std::optional<double> number_in(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

std::string to_text(const TrainState& state) {
  return Json{{"version", kVersion},
              {"step", state.step},
              {"seconds", state.seconds},
              {"best",
               {{"of", state.best.of},
                {"value", json_of(state.best.value)},
                {"step", state.best.step},
                {"mark", json_of(state.best.mark)},
                {"evaluations_since_progress", state.best.evaluations_since_progress}}},
              {"blas", state.blas}}
      .dump();
}

TrainState state_from(const std::string& text) {
  const Json json = Json::parse(text);
  if (const auto version = json.at("version").get<std::int64_t>(); version != kVersion)
    throw Error(fmt::format("it is a checkpoint of version {}, and this tutti reads version {}", version, kVersion));
  const Json& best = json.at("best");
  return {.step = json.at("step").get<std::int64_t>(),
          .seconds = json.at("seconds").get<double>(),
          .best = {.of = best.at("of").get<std::string>(),
                   .value = number_in(best.at("value")),
                   .step = best.at("step").get<std::int64_t>(),
                   .mark = number_in(best.at("mark")),
                   .evaluations_since_progress = best.at("evaluations_since_progress").get<std::int64_t>()},
          .blas = json.at("blas").get<std::string>(),
          .run = {}};
}

// A link that is the old one or the new one.
void put_link(const fs::path& link, const fs::path& to) {
  const fs::path temporary = link.parent_path() / fmt::format(".{}.new", link.filename().string());
  std::error_code problem;
  fs::remove(temporary, problem);
  fs::create_symlink(to, temporary, problem);
  if (!problem) fs::rename(temporary, link, problem);
  // Some file systems have no links. They are for people; nothing here reads them.
}

bool is_of_clients(const std::string& name) { return name.starts_with(Stepper::kOfClients); }

bool is_federated(const ParameterSet& arrays) { return arrays.find("server/counts") != nullptr; }

// How many a federated run has, as its run file says; 0 of other files.
std::int64_t clients_of(const SafetensorsFile& file) {
  const auto run = file.metadata.find(kRunKey);
  if (run == file.metadata.end() || !is_federated(file.parameters)) return 0;
  const Json json = Json::parse(run->second, nullptr, /*allow_exceptions=*/false);
  const Json::json_pointer place("/graph/strategy/num_clients");
  const bool is_there = json.is_object() && json.contains(place) && json.at(place).is_number_integer();
  return is_there ? json.at(place).get<std::int64_t>() : 0;
}

// All others have a slash in their names.
bool is_weight(const NamedArray& array) { return array.name().find('/') == std::string::npos; }

}  // namespace

Checkpoint read_checkpoint(const fs::path& file) {
  SafetensorsFile read = read_safetensors(file, {.require_checksum = true, .is_aside = is_of_clients});
  Checkpoint checkpoint{.state = {}, .arrays = std::move(read.parameters), .file = file};
  const auto state = read.metadata.find(kStateKey);
  if (state == read.metadata.end()) throw Error(fmt::format("cannot read {}: it is no checkpoint", file.string()));
  try {
    checkpoint.state = state_from(state->second);
  } catch (const std::exception& problem) {
    throw Error(fmt::format("cannot read {}: {}", file.string(), problem.what()));
  }
  if (const auto run = read.metadata.find(kRunKey); run != read.metadata.end()) checkpoint.state.run = run->second;
  return checkpoint;
}

void read_clients(const fs::path& file,
                  const std::function<void(const ParameterLayout& layout, std::span<const std::byte> bytes)>& take) {
  std::exception_ptr refused;  // by whoever takes it, which says nothing of the file
  const auto offer = [&](const ParameterLayout& layout, std::span<const std::byte> bytes) {
    if (refused || !is_of_clients(layout.name)) return;
    try {
      take(layout, bytes);
    } catch (...) {
      refused = std::current_exception();
    }
  };
  const auto is_any = [](const std::string&) { return true; };
  (void)read_safetensors(file, {.require_checksum = true, .is_aside = is_any, .take_aside = offer});
  if (refused) std::rethrow_exception(refused);
}

ParameterSet weights_in(const fs::path& file, int replica) {
  const std::string its = fmt::format("{}{}/", Stepper::kOfClients, replica);
  const auto is_of_another = [&](const std::string& name) { return is_of_clients(name) && !name.starts_with(its); };
  SafetensorsFile read = read_safetensors(file, {.is_aside = is_of_another});
  if (const std::int64_t clients = clients_of(read); clients > 0 && replica >= clients)
    throw UsageError(fmt::format("there is no client {}, expected 0 to {}", replica, clients - 1));
  if (read.metadata.contains(kStateKey) || replica != 0) return weights_of_replica(read.parameters, replica);
  return std::move(read.parameters);
}

ParameterSet weights_of_replica(const ParameterSet& arrays, int replica) {
  // Of replicas, their private buffers, and clients.
  const std::vector<std::string> prefixes = {fmt::format("replica/{}/", replica), fmt::format("shard/{}/", replica),
                                             fmt::format("client/{}/state/", replica)};
  const auto is_its_own = [&](const NamedArray& array) {
    return array.name().starts_with(prefixes.front()) || array.name().starts_with(prefixes.back());
  };
  const auto is_personal = [](const NamedArray& array) { return array.name().starts_with("personal/"); };
  if (replica != 0 && std::ranges::none_of(arrays, is_its_own)) {
    if (!is_federated(arrays))
      throw UsageError(fmt::format("there is no replica {} with parameters of its own; take replica 0's", replica));
    if (std::ranges::none_of(arrays, is_personal))
      throw UsageError("the run has no layers that stay on clients: all of them have the server's");
    throw UsageError(fmt::format("client {} was never asked, so that it has no layers of its own yet", replica));
  }
  ParameterSet weights;
  for (const NamedArray& array : arrays) {
    if (!is_weight(array)) continue;
    const NamedArray* own = nullptr;
    for (const std::string& prefix : prefixes) {
      if (own == nullptr && replica != 0) own = arrays.find(prefix + array.name());
    }
    weights.add(array.layout(), own != nullptr ? own->bytes() : array.bytes());
  }
  return weights;
}

std::vector<std::int64_t> checkpoints_to_remove(const std::vector<std::int64_t>& steps, const RunCheckpoints& policy,
                                                std::int64_t best_step) {
  std::vector<std::int64_t> removed;
  const auto last = static_cast<std::size_t>(std::max<std::int64_t>(policy.keep_last, 1));
  for (std::size_t i = 0; i + last < steps.size(); ++i) {
    if (!policy.keep_best || steps[i] != best_step) removed.push_back(steps[i]);
  }
  return removed;
}

CheckpointFolder::CheckpointFolder(fs::path folder, RunCheckpoints policy)
    : folder_(std::move(folder)), policy_(policy) {}

std::vector<CheckpointFile> CheckpointFolder::files() const {
  std::vector<CheckpointFile> files;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, problem)) {
    if (const std::optional<std::int64_t> step = step_of(entry.path())) files.push_back({*step, entry.path()});
  }
  std::ranges::sort(files, {}, &CheckpointFile::step);
  return files;
}

fs::path CheckpointFolder::write(const Checkpoint& checkpoint) {
  std::error_code problem;
  fs::create_directories(folder_, problem);
  if (problem) throw Error(fmt::format("cannot make the folder {}: {}", folder_.string(), problem.message()));
  const TrainState& state = checkpoint.state;
  fs::path path = folder_ / file_name(state.step);
  write_safetensors(path, checkpoint.arrays,
                    {.metadata = {{kStateKey, to_text(state)}, {kRunKey, state.run}},
                     .checksum = true,
                     .more = checkpoint.of_clients});
  put_link(folder_ / "last.safetensors", path.filename());
  const fs::path best = file_name(state.best.step);
  if (policy_.keep_best && state.best.value && fs::exists(folder_ / best)) put_link(folder_ / "best.safetensors", best);
  // Of a run that went on from an earlier step, what came later is of another past, or could not be read: it is put
  // aside.
  std::vector<std::int64_t> steps;
  for (const CheckpointFile& file : files()) {
    if (file.step > state.step)
      fs::rename(file.path, file.path.string() + ".aside", problem);
    else
      steps.push_back(file.step);
  }
  for (const std::int64_t step : checkpoints_to_remove(steps, policy_, state.best.value ? state.best.step : -1))
    fs::remove(folder_ / file_name(step), problem);
  return path;
}

std::optional<Checkpoint> CheckpointFolder::read_last(std::vector<std::string>& problems) const {
  std::vector<CheckpointFile> all = files();
  while (!all.empty()) {
    try {
      return read_checkpoint(all.back().path);
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
    all.pop_back();
  }
  return std::nullopt;
}

}  // namespace tutti
