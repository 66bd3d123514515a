#include "cli/process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::cli {
namespace {

using namespace std::chrono_literals;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

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

// Ours, and what the command says about it.
std::vector<std::string> environment_of(const Command& command) {
  std::set<std::string, std::less<>> not_ours(command.without.begin(), command.without.end());
  for (const std::string& variable : command.environment) not_ours.insert(variable.substr(0, variable.find('=')));
  std::vector<std::string> variables;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (!not_ours.contains(text.substr(0, text.find('=')))) variables.emplace_back(text);
  }
  variables.insert(variables.end(), command.environment.begin(), command.environment.end());
  return variables;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
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

Signals::Signals(const std::vector<int>& numbers) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int number : numbers) {
    if (!is_ignored(number)) sigaddset(&set, number);
  }
  // Where it is ignored children vanish, and how they ended with them.
  ::signal(SIGCHLD, SIG_DFL);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) fail("sigprocmask");
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) fail("signalfd");
}

Signals::~Signals() { ::close(descriptor_); }

std::vector<int> Signals::taken() {
  std::vector<int> numbers;
  signalfd_siginfo info;
  first_ended_.reset();
  while (::read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) {
      numbers.push_back(static_cast<int>(info.ssi_signo));
    } else if (!first_ended_ && info.ssi_code != CLD_STOPPED && info.ssi_code != CLD_CONTINUED) {
      // While it waits to be taken, the system drops those of later children.
      first_ended_ = static_cast<pid_t>(info.ssi_pid);
    }
  }
  return numbers;
}

void Signals::take() {
  if (!taken().empty()) throw Interrupted("interrupted");
}

Pipe::Pipe() {
  if (::pipe2(ends_.data(), O_CLOEXEC) != 0) fail("pipe");
}

Pipe::Pipe(Pipe&& other) noexcept : ends_(std::exchange(other.ends_, {-1, -1})) {}

Pipe::~Pipe() {
  close_input();
  close_output();
}

void Pipe::close_output() {
  if (ends_[0] >= 0) ::close(std::exchange(ends_[0], -1));
}

void Pipe::close_input() {
  if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
}

int poll_milliseconds(Duration duration) {
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<std::int64_t>(count, 0, 60'000));
}

std::string describe_signal(int number) { return fmt::format("signal {} ({})", number, ::strsignal(number)); }

std::string Command::text() const { return fmt::format("{}", fmt::join(words, " ")); }

Child::Child(const Command& command, const Descriptors& descriptors, const Ties& ties) : own_group_(ties.own_group) {
  // All that takes memory is done before: after a fork other threads' locks stay locked.
  const std::vector<char*> words = pointers(command.words);
  const std::vector<std::string> variables = environment_of(command);
  const std::vector<char*> environment = pointers(variables);
  Pipe problem;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, ties.when_we_die);
    if (::getppid() != parent) ::_exit(127);
    if (ties.own_group) ::setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(descriptors.input >= 0 ? descriptors.input : ::open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (descriptors.output >= 0) ::dup2(descriptors.output, STDOUT_FILENO);
    if (descriptors.errors >= 0) ::dup2(descriptors.errors, STDERR_FILENO);
    ::execvpe(words[0], words.data(), environment.data());
    const int code = errno;
    [[maybe_unused]] const ssize_t written = ::write(problem.input(), &code, sizeof code);
    ::_exit(127);
  }
  problem.close_input();
  int code = 0;
  ssize_t count = 0;
  do {
    count = ::read(problem.output(), &code, sizeof code);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof code)) return;
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  throw Error(fmt::format("cannot start {}: {}", command.words[0], std::strerror(code)));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      own_group_(other.own_group_),
      ended_(other.ended_),
      by_signal_(other.by_signal_),
      exit_code_(other.exit_code_),
      peak_memory_(other.peak_memory_),
      problem_(std::move(other.problem_)) {}

Child::~Child() {
  constexpr auto kGrace = 5s;
  if (running()) {
    own_group_ ? signal_group(SIGTERM) : signal(SIGTERM);
    const Deadline grace = Deadline::after(kGrace);
    while (running()) {
      if (grace.passed()) signal(SIGKILL);
      std::this_thread::sleep_for(5ms);
    }
  }
  end_group();
}

bool Child::running() {
  if (pid_ < 0 || ended_) return false;
  siginfo_t info{};
  // Looked at first, and let go later: until then nobody else gets its number, nor its group's.
  const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  if (result < 0 && errno == EINTR) return true;
  if (result == 0 && info.si_pid == 0) return true;
  ended_ = true;
  by_signal_ = result == 0 && info.si_code != CLD_EXITED;
  if (result < 0) {
    exit_code_ = 1;
    problem_ = "was lost";
  } else if (by_signal_) {
    exit_code_ = 128 + info.si_status;
    problem_ = "was ended by " + describe_signal(info.si_status);
  } else if (info.si_status != 0) {
    exit_code_ = info.si_status;
    problem_ = fmt::format("ended with exit code {}", info.si_status);
  }
  if (!own_group_) let_go();
  return false;
}

void Child::let_go() {
  rusage usage{};
  if (::wait4(std::exchange(pid_, -1), nullptr, 0, &usage) > 0)
    peak_memory_ = Bytes{static_cast<std::uint64_t>(usage.ru_maxrss) * 1024};
}

bool Child::stopped() const {
  if (pid_ < 0 || ended_) return false;
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

void Child::signal(int number) {
  if (pid_ > 0 && !ended_) ::kill(pid_, number);
}

void Child::signal_group(int number) {
  if (pid_ > 0 && own_group_) ::kill(-pid_, number);
}

void Child::end_group() {
  signal(SIGKILL);
  signal_group(SIGKILL);
  if (pid_ > 0) let_go();
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
    const int ready = ::poll(events.data(), events.size(), running ? poll_milliseconds(deadline.remaining()) : 0);
    if (ready < 0 && errno != EINTR) fail("poll");
    if (ready == 0 && !running) break;
    signals.take();
    if (events[1].revents != 0) more_text = read_some(text.output(), output.text);
    if (events[2].revents != 0) more_errors = read_some(errors.output(), output.errors);
    running = running && child.running();
  }
  if (!child.problem().empty())
    throw Error(fmt::format("'{}' {}{}", command.text(), child.problem(), last_lines(output.errors)));
  output.peak_memory = child.peak_memory();
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

void bury_orphans(const std::vector<pid_t>& ours) {
  for (const pid_t pid : children_of(::getpid())) {
    if (std::ranges::find(ours, pid) == ours.end()) ::waitpid(pid, nullptr, WNOHANG);
  }
}

ScratchFolder::ScratchFolder() {
  std::string name = std::filesystem::temp_directory_path() / "tutti-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) fail(name.c_str());
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace tutti::cli
