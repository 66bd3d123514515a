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

// Runs `work` once: with the world of the processes that a launcher started, or with none where this one is alone.
// Before that, `prepare` on each of them: what it throws is told by the first process that is not ready, be it on
// another host, and ends all of them. Misuse that `work` finds is rank 0's to tell.
void run_with_processes(const std::function<void()>& prepare, const std::function<void(Communicator* world)>& work);

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
