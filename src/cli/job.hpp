// Several processes that are one job: they start together, their output comes out line by line, and when one fails the
// others end.
//
//   Signals signals(job_signals());
//   int code = run_job({.ranks = {{.words = {"./program"}, .environment = {"RANK=0"}}, ...}, .grace = 5s}, signals);
//
// What `tutti launch` does, once it knows what to start.
#pragma once

#include <chrono>
#include <vector>

#include <tutti/base/deadline.hpp>

#include "cli/process.hpp"

namespace tutti::cli {

struct Job {
  std::vector<Command> ranks;
  Duration grace = std::chrono::seconds(5);  // how long others may go on when one failed, and again when asked to end
  bool prefix = true;                        // "[2] " before each line of rank 2
  // A rank that a signal ends is lost, and no failure, unless it is rank 0. When that has ended well the job has, too:
  // others have their time to end, and no more.
  bool keep_going = false;
};

// What the Signals of a job take: to pass on, and to see that the output was closed.
std::vector<int> job_signals();

// Runs to the end, tells on standard error what went wrong, and leaves no process behind. 0 where all ended well that
// were not lost; otherwise the exit code of the first that failed, 128 and the signal where one ended it or us. A
// UsageError where not even the first could be started.
int run_job(const Job& job, Signals& signals);

}  // namespace tutti::cli
