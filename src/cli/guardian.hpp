// Ends groups of processes when we die, however we die: `kill -9` leaves no time to do it ourselves.
//
//   Guardian guardian;
//   guardian.guard(child.pid());     // a child that leads a group of its own
//
// It is a process of its own, which waits for nothing but our end. Processes that left their group are not ended by it.
#pragma once

#include <sys/types.h>

#include "cli/process.hpp"

namespace tutti::cli {

class Guardian {
 public:
  static constexpr int kMostGroups = 1024;

  Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  // Its groups are left to us again.
  ~Guardian();

  void guard(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  Pipe groups_;
  pid_t pid_ = -1;
};

}  // namespace tutti::cli
