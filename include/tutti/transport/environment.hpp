// Who this process is in a job of processes, as whoever started it says in the environment: tutti launch, torchrun,
// mpirun or srun (docs/launch.md).
//
//   if (const std::optional<ProcessPlace> place = discover_place())
//     fmt::print("{} of {}, by {}\n", to_string(place->rank), place->size, place->launcher);
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>

namespace tutti {

struct ProcessPlace {
  Rank rank;
  int size = 1;
  int local_rank = 0;  // among the processes of this host; the rank where nobody says

  // Where the ranks meet. A job of one process may have no such place: then the host is empty and the port 0. So may
  // one whose ranks meet in a folder (folder.hpp); `why_no_store` is what to tell the others, a sentence that names the
  // variables that are missing.
  std::string store_host = {};
  int store_port = 0;
  std::string why_no_store = {};
  bool store_is_served = false;   // by the launcher; otherwise rank 0 serves it
  std::string store_prefix = {};  // what PyTorch puts before its keys in a launcher's store; may be empty

  std::string launcher = {};  // "tutti launch", "torchrun", "mpirun" or "srun": for messages

  // What tutti's own variables say.
  std::optional<std::string> interface = {};  // TUTTI_INTERFACE: the network interface, or its address, to talk on
  std::optional<bool> shared_memory = {};     // TUTTI_SHARED_MEMORY: 0 or 1
  std::optional<Duration> heartbeat = {};     // TUTTI_HEARTBEAT: in seconds
};

// The value of a variable, where it is set.
using VariableLookup = std::function<std::optional<std::string>(const char* name)>;

// Nothing where nobody says that this is one of several processes. A set of variables without the rank or the number of
// ranks, and a value that cannot be, are UsageErrors that name what is missing or wrong.
std::optional<ProcessPlace> discover_place(const VariableLookup& variable);
// From this process's environment.
std::optional<ProcessPlace> discover_place();

// The variables that say which rank a process is and where the ranks meet: what a launcher sets or must clear.
std::vector<std::string> launcher_variables();
// All that `discover_place` looks at: those, and what else can be said to tutti.
std::vector<std::string> variable_names();

}  // namespace tutti
