#include "cli/guardian.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::cli {
namespace {

// In the process that a fork of ours made: nothing here takes memory or a lock.
[[noreturn]] void watch(int groups) {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // What ends our session or group does not end it, and it holds nobody's pipe open.
  ::setsid();
  ::prctl(PR_SET_NAME, "tutti guardian");
  ::dup2(groups, STDIN_FILENO);
  ::close_range(STDOUT_FILENO, ~0U, 0);
  std::array<pid_t, Guardian::kMostGroups> known;
  std::size_t count = 0;
  // A number is written at once, so it is read at once; the end of the pipe is our end.
  for (;;) {
    pid_t group = 0;
    const ssize_t read = ::read(STDIN_FILENO, &group, sizeof group);
    if (read < 0 && errno == EINTR) continue;
    if (read != static_cast<ssize_t>(sizeof group)) break;
    if (count < known.size()) known[count++] = group;
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-known[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian() : pid_(::fork()) {
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    groups_.close_input();
    watch(groups_.output());
  }
  groups_.close_output();
}

Guardian::~Guardian() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Guardian::guard(pid_t group) {
  if (::write(groups_.input(), &group, sizeof group) != static_cast<ssize_t>(sizeof group))
    throw std::system_error(errno, std::generic_category(), "write");
}

}  // namespace tutti::cli
