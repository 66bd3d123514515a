// Runs a function on ranks: threads of this process, or where a launcher started several processes, those.
//
//   tell_misuse_once([&] {
//     run_on_ranks({2, 4}, [](Communicator& world) { ... }, {.shared_memory = true});
//   });
//
// `tutti bench all-reduce` runs on threads; `tutti launch --processes 4 -- bench all-reduce` runs the same on
// processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include <tutti/collective/communicator.hpp>
#include <tutti/transport/environment.hpp>

namespace tutti::cli {

// Which of several processes this is; nothing where ranks are threads. A UsageError where a launcher started this
// process and this program was built without c10d, so that it cannot join the others.
std::optional<ProcessPlace> own_place();

struct RanksOptions {
  bool shared_memory = true;  // false: ranks exchange messages only. TUTTI_SHARED_MEMORY comes before it
};

// On threads once for each number of ranks. On processes once, with the number that there is, which must be the only
// one in `counts`. A rank that throws ends the others' waits.
void run_on_ranks(const std::vector<int>& counts, const std::function<void(Communicator&)>& f,
                  const RanksOptions& options = {});

// A folder where processes meet that have no network (folder.hpp).
struct MeetingFolder {
  std::filesystem::path path = {};
  bool is_own = false;  // the job's, which goes with it
};

// What processes do that a launcher started, or one that is alone.
struct ProcessWork {
  // On each of them. What it throws is told by the first process that is not ready, be it on another host, and ends all
  // of them.
  std::function<void()> prepare;
  // Once that is done: the folder where they meet; nothing where they have a network. Who is not prepared cannot know.
  std::function<std::optional<MeetingFolder>()> meets_in = [] { return std::nullopt; };
  // With the world of them, or with none where this one is alone. Misuse that it finds is rank 0's to tell.
  std::function<void(Communicator* world)> work;
};
void run_with_processes(const ProcessWork& work);

// Runs a verb's work. All processes of a job get the same arguments, so rank 0 tells of misuse, and the others end with
// its exit code.
void tell_misuse_once(const std::function<void()>& work);

// What carries bytes between these ranks: "tutti" between threads, "tutti-shm" between processes that share memory,
// "tutti-c10d" between processes over sockets; and what the ranks are, in words.
std::string_view engine_of(Communicator& world);
std::string_view describe_ranks(Communicator& world);

// How many ranks, with this one, are on this host.
int ranks_of_host(Communicator& world);

// Gives every rank what rank 0 passed.
std::uint64_t agree(Communicator& world, std::uint64_t of_rank_0);

}  // namespace tutti::cli
