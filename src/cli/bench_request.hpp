// What every suite of `tutti bench` can be asked: who the ranks are, which sizes, how long, and how to tell the result.
//
//   BenchOptions options(line);                                 // --ranks, --bytes, --messages-only, --json, ...
//   if (!line.parse(arguments)) return;
//   BenchRequest request = options.read();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tutti/base/bytes.hpp>
#include <tutti/collective/communicator.hpp>

#include "cli/command_line.hpp"
#include "cli/measure.hpp"

namespace tutti::cli {

struct BenchRequest {
  std::vector<int> ranks;  // where ranks are processes, how many there are
  std::vector<Bytes> sizes;
  bool messages_only = false;
  Effort effort;
  bool json = false;

  // On every rank, for each number of ranks.
  void run(const std::function<void(Communicator&)>& f) const;
};

class BenchOptions {
 public:
  explicit BenchOptions(CommandLine& line);
  BenchOptions(const BenchOptions&) = delete;
  BenchOptions& operator=(const BenchOptions&) = delete;

  // What was asked for, once the line has read its arguments.
  BenchRequest read() const;

 private:
  BenchRequest request_;
  std::string ranks_ = "2,4";
  std::string sizes_ = "1KiB,64KiB,1MiB,4MiB,64MiB";
  CommandOption ranks_option_;
};

// Before anything is allocated: the system hands out memory it does not have, and ends the process later. `arrays` is
// how many arrays of a size a rank holds, given how many ranks there are. A UsageError where a host cannot hold them
// all, the same on all ranks. For threads before there are any, for the greatest number of them; for processes once
// they know which of them share a host.
void refuse_what_memory_cannot_hold(const BenchRequest& request, const std::function<std::uint64_t(int ranks)>& arrays);
void refuse_what_memory_cannot_hold(const BenchRequest& request, const std::function<std::uint64_t(int ranks)>& arrays,
                                    Communicator& world);

}  // namespace tutti::cli
