#include "process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::bench {
namespace {

using namespace std::chrono_literals;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return {};
}

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) fail("pipe");
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_input();
    ::close(ends_[0]);
  }

  int output() const { return ends_[0]; }
  int input() const { return ends_[1]; }
  void close_input() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// False at the end of what there is to read.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return true;
}

// What a program said last, for an error message.
std::string last_lines(std::string_view text) {
  constexpr std::size_t kMost = 2000;
  while (text.ends_with('\n')) text.remove_suffix(1);
  if (text.empty()) return {};
  if (text.size() > kMost) text.remove_prefix(text.size() - kMost);
  return fmt::format("; it said:\n{}", text);
}

int milliseconds(Duration duration) {
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<std::int64_t>(count, 0, 60'000));
}

// The parent of a process, or none where it is gone. The name before it may hold blanks and brackets.
pid_t parent_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");
  if (end == std::string::npos || text.size() < end + 4) return -1;
  return static_cast<pid_t>(std::strtol(text.c_str() + end + 4, nullptr, 10));
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (!std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (parent_of(entry.path()) == parent) children.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return children;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = watched_signals();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) fail("sigprocmask");
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) fail("signalfd");
}

Signals::~Signals() { ::close(descriptor_); }

void Signals::take() {
  signalfd_siginfo info;
  while (::read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) throw Interrupted("interrupted");
  }
}

std::string Command::text() const { return fmt::format("{}", fmt::join(words, " ")); }

Child::Child(const Command& command, const Descriptors& descriptors) {
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  Pipe problem;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    // Asked, not killed: mpirun then ends its ranks and removes its files.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    // Nobody reads our input; mpirun would, and stop when it is a terminal's.
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (descriptors.output >= 0) ::dup2(descriptors.output, STDOUT_FILENO);
    if (descriptors.errors >= 0) ::dup2(descriptors.errors, STDERR_FILENO);
    for (const std::string& variable : command.environment) ::putenv(const_cast<char*>(variable.c_str()));
    ::execvp(words[0], words.data());
    const int code = errno;
    [[maybe_unused]] const ssize_t written = ::write(problem.input(), &code, sizeof code);
    ::_exit(127);
  }
  problem.close_input();
  int code = 0;
  if (::read(problem.output(), &code, sizeof code) != static_cast<ssize_t>(sizeof code)) return;
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  throw Error(fmt::format("cannot start {}: {}", command.words[0], std::strerror(code)));
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), problem_(std::move(other.problem_)) {}

Child::~Child() {
  constexpr auto kGrace = 5s;
  if (!running()) return;
  ::kill(pid_, SIGTERM);
  const Deadline grace = Deadline::after(kGrace);
  while (running()) {
    if (grace.passed()) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(5ms);
  }
}

bool Child::running() {
  if (pid_ < 0) return false;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return true;
  problem_ = ended < 0 ? "was lost" : describe(status);
  pid_ = -1;
  return false;
}

Output run(const Command& command, Duration patience, Signals& signals) {
  const Deadline deadline = Deadline::after(patience);
  Pipe text;
  Pipe errors;
  Output output;
  Child child(command, {.output = text.input(), .errors = errors.input()});
  text.close_input();
  errors.close_input();
  bool more_text = true;
  bool more_errors = true;
  // A grandchild that outlives the child may hold the pipes open: what counts is the child's end.
  for (bool running = true; running || more_text || more_errors;) {
    if (running && deadline.passed())
      throw Error(
          fmt::format("'{}' did not end within {}{}", command.text(), to_string(patience), last_lines(output.errors)));
    std::array<pollfd, 3> events{{{signals.descriptor(), POLLIN, 0},
                                  {more_text ? text.output() : -1, POLLIN, 0},
                                  {more_errors ? errors.output() : -1, POLLIN, 0}}};
    const int ready = ::poll(events.data(), events.size(), running ? milliseconds(deadline.remaining()) : 0);
    if (ready < 0 && errno != EINTR) fail("poll");
    if (ready == 0 && !running) break;
    signals.take();
    if (events[1].revents != 0) more_text = read_some(text.output(), output.text);
    if (events[2].revents != 0) more_errors = read_some(errors.output(), output.errors);
    running = running && child.running();
  }
  if (!child.problem().empty())
    throw Error(fmt::format("'{}' {}{}", command.text(), child.problem(), last_lines(output.errors)));
  return output;
}

void wait_for_all(std::vector<Child>& children, Signals& signals) {
  for (;;) {
    // Taken first: a child that ends after it was looked at leaves a signal for the poll.
    signals.take();
    bool any_running = false;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (children[i].running()) {
        any_running = true;
      } else if (!children[i].problem().empty()) {
        throw Error(fmt::format("process {} {}", i, children[i].problem()));
      }
    }
    if (!any_running) return;
    pollfd event{signals.descriptor(), POLLIN, 0};
    ::poll(&event, 1, -1);
  }
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

void end_orphans() {
  // Ending one may leave us its own children, so look until there are none.
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : children_of(::getpid())) {
      ::kill(pid, SIGKILL);
      found |= ::waitpid(pid, nullptr, 0) == pid;
    }
  }
}

ScratchFolder::ScratchFolder() {
  std::string name = std::filesystem::temp_directory_path() / "tutti-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) fail(name.c_str());
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace tutti::bench
