// The processes that a launcher started, all of which run the whole test program.
#pragma once

#include <functional>

#include <tutti/transport/transport.hpp>

namespace tutti::testing {

// The first so many processes form a world of their own and run the script; the others wait for them.
void run_processes(int ranks, const std::function<void(std::unique_ptr<Transport>)>& script);

// How many there are, and whether they share memory.
int processes();
bool processes_share_memory();

}  // namespace tutti::testing
