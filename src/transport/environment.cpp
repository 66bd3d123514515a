#include <tutti/transport/environment.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// How a launcher says who is who. All but `local_rank` must be there.
struct RankVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
};

constexpr RankVariables kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr RankVariables kOpenMpi{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr RankVariables kMpich{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"};
constexpr RankVariables kSlurm{"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};

constexpr const char* kMasterAddress = "MASTER_ADDR";
constexpr const char* kMasterPort = "MASTER_PORT";
constexpr const char* kAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";
constexpr const char* kSlurmStep = "SLURM_STEP_ID";
constexpr const char* kLauncher = "TUTTI_LAUNCHER";
constexpr const char* kStore = "TUTTI_STORE";
constexpr const char* kInterface = "TUTTI_INTERFACE";
constexpr const char* kSharedMemory = "TUTTI_SHARED_MEMORY";
constexpr const char* kHeartbeat = "TUTTI_HEARTBEAT";

constexpr int kMostInt = std::numeric_limits<int>::max();
constexpr int kMostPort = 65535;
constexpr double kLeastHeartbeat = 0.001;
constexpr double kMostHeartbeat = 1e6;

[[noreturn]] void refuse(std::string_view name, std::string_view expected, std::string_view found) {
  throw UsageError(fmt::format("{}: expected {}, found '{}'", name, expected, found));
}

template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc{} || rest != end) return std::nullopt;
  return number;
}

class Environment {
 public:
  explicit Environment(const VariableLookup& variable) : variable_(variable) {}

  std::optional<std::string> text(const char* name) const { return variable_(name); }
  bool has(const char* name) const { return text(name).has_value(); }
  bool has_any(const RankVariables& names) const { return has(names.rank) || has(names.size); }

  // A whole number in [least, most]; `reason` follows what is expected.
  std::optional<int> whole(const char* name, int least, int most, std::string_view reason = "") const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int> number = parse<int>(*value);
    if (number && *number >= least && *number <= most) return number;
    if (most == kMostInt) refuse(name, fmt::format("a whole number from {} on{}", least, reason), *value);
    refuse(name, fmt::format("a whole number from {} to {}{}", least, most, reason), *value);
  }

 private:
  const VariableLookup& variable_;
};

// srun gives its steps small numbers; the shells that sbatch and salloc start have some of the last in 32 bits.
bool is_slurm_rank(const Environment& environment) {
  constexpr std::uint64_t kFirstReservedStep = 0xfffffff0;
  const std::optional<std::string> step = environment.text(kSlurmStep);
  if (!step || !environment.has_any(kSlurm)) return false;
  const std::optional<std::uint64_t> number = parse<std::uint64_t>(*step);
  return !number || *number < kFirstReservedStep;
}

std::optional<RankVariables> find_launcher(const Environment& environment) {
  if (environment.has_any(kTorchrun)) return kTorchrun;
  if (environment.has_any(kOpenMpi)) return kOpenMpi;
  if (environment.has_any(kMpich)) return kMpich;
  if (is_slurm_rank(environment)) return kSlurm;
  if (environment.has(kMasterAddress) || environment.has(kMasterPort)) return kTorchrun;
  return std::nullopt;
}

std::string list(const std::vector<std::string>& names) {
  if (names.size() == 1) return names[0];
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

// A sentence about those that are missing; nothing where none is.
std::optional<std::string> tell_missing(const Environment& environment, const std::string& launcher,
                                        const std::vector<const char*>& names) {
  std::vector<std::string> missing;
  bool any_missing = false;
  for (const char* name : names) {
    const std::optional<std::string> value = environment.text(name);
    any_missing = any_missing || !value;
    // Where nothing else is wrong, its reader says what it expected.
    if (!value || value->empty()) missing.push_back(std::string(name) + (value ? " (set, but empty)" : ""));
  }
  if (!any_missing) return std::nullopt;
  return fmt::format("the environment is {}'s, but {} {} missing{}", launcher, list(missing),
                     missing.size() == 1 ? "is" : "are",
                     missing.back() == kStore ? " (the host and port of rank 0, as in node1:29500)" : "");
}

// "host:port", with brackets around an IPv6 address.
void read_store(const std::string& text, ProcessPlace& place) {
  constexpr std::string_view kExpected = "a host and a port from 1 to 65535, as in node1:29500 or [::1]:29500";
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) refuse(kStore, kExpected, text);
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string::npos) {
    refuse(kStore, kExpected, text);
  }
  const std::optional<int> port = parse<int>(std::string_view(text).substr(colon + 1));
  if (host.empty() || !port || *port < 1 || *port > kMostPort) refuse(kStore, kExpected, text);
  place.store_host = std::move(host);
  place.store_port = *port;
}

void read_master(const Environment& environment, ProcessPlace& place) {
  const std::optional<std::string> host = environment.text(kMasterAddress);
  const std::optional<int> port = environment.whole(kMasterPort, 1, kMostPort);
  if (host && host->empty()) refuse(kMasterAddress, "a host name or an address", *host);
  const int restarts = environment.whole(kRestartCount, 0, kMostInt).value_or(0);
  if (!host || !port) return;
  place.store_host = *host;
  place.store_port = *port;
  place.store_is_served = environment.text(kAgentStore) == "True";
  if (place.store_is_served) place.store_prefix = fmt::format("/worker/attempt_{}", restarts);
}

void read_own(const Environment& environment, ProcessPlace& place) {
  place.interface = environment.text(kInterface);
  if (place.interface && place.interface->empty())
    refuse(kInterface, "a network interface or its address, as in eth0", *place.interface);
  if (const std::optional<std::string> value = environment.text(kSharedMemory)) {
    if (value != "0" && value != "1") refuse(kSharedMemory, "0 or 1", *value);
    place.shared_memory = value == "1";
  }
  if (const std::optional<std::string> value = environment.text(kHeartbeat)) {
    const std::optional<double> seconds = parse<double>(*value);
    if (!seconds || !(*seconds >= kLeastHeartbeat && *seconds <= kMostHeartbeat))
      refuse(kHeartbeat, fmt::format("a number of seconds from {} to {:.0f}", kLeastHeartbeat, kMostHeartbeat), *value);
    place.heartbeat = Duration(std::llround(*seconds * 1e9));
  }
}

}  // namespace

std::optional<ProcessPlace> discover_place(const VariableLookup& variable) {
  const Environment environment(variable);
  const std::optional<RankVariables> names = find_launcher(environment);
  if (!names) return std::nullopt;
  const bool is_torchrun = std::string_view(names->rank) == kTorchrun.rank;
  ProcessPlace place;
  place.launcher = is_torchrun && environment.text(kLauncher) == "launch" ? "tutti launch" : names->launcher;

  std::vector<const char*> needed{names->rank, names->size};
  // A process that is alone has nobody to meet.
  if (environment.text(names->size) != "1") {
    if (is_torchrun) {
      needed.insert(needed.end(), {kMasterAddress, kMasterPort});
    } else {
      needed.push_back(kStore);
    }
  }
  if (const std::optional<std::string> missing = tell_missing(environment, place.launcher, needed)) {
    if (!environment.has(names->rank) || !environment.has(names->size)) throw UsageError(*missing);
    place.why_no_store = *missing;
  }

  place.size = *environment.whole(names->size, 1, kMostInt);
  const std::string reason = fmt::format(" ({} is {})", names->size, place.size);
  place.rank = Rank{*environment.whole(names->rank, 0, place.size - 1, reason)};
  place.local_rank = environment.whole(names->local_rank, 0, place.size - 1, reason).value_or(place.rank.value);
  if (is_torchrun) {
    read_master(environment, place);
  } else if (const std::optional<std::string> store = environment.text(kStore)) {
    read_store(*store, place);
  }
  read_own(environment, place);
  return place;
}

std::optional<ProcessPlace> discover_place() {
  return discover_place([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::vector<std::string> launcher_variables() {
  std::vector<std::string> names;
  for (const RankVariables& set : {kTorchrun, kOpenMpi, kMpich, kSlurm})
    names.insert(names.end(), {set.rank, set.size, set.local_rank});
  names.insert(names.end(), {kMasterAddress, kMasterPort, kAgentStore, kRestartCount, kSlurmStep, kLauncher, kStore});
  return names;
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names = launcher_variables();
  names.insert(names.end(), {kInterface, kSharedMemory, kHeartbeat});
  return names;
}

}  // namespace tutti
