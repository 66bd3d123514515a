// Starting other programs, and leaving none of them behind.
//
//   Signals signals;                                          // from now on SIGINT and SIGTERM are an Interrupted
//   Output output = run({.words = {"mpirun", "-n", "2", "true"}}, 5min, signals);
//
// Whoever starts programs has made its Signals before any other thread: threads inherit that these are taken there.
#pragma once

#include <array>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <tutti/base/bytes.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti::cli {

// Somebody pressed Ctrl-C or ended us in another way.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// Takes signals, and those that a child ended, so that a wait can see them. One per program. What this program was told
// to ignore, as nohup does, stays ignored.
class Signals {
 public:
  // Those that end a program, unless it is said which.
  Signals() : Signals({SIGINT, SIGTERM, SIGHUP}) {}
  explicit Signals(const std::vector<int>& numbers);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  // Readable when one came.
  int descriptor() const { return descriptor_; }
  // Takes all that came; throws Interrupted when one of them should end us.
  void take();
  // All that came, in order, except that children ended.
  std::vector<int> taken();
  // Of the children that had ended when signals were last taken, the first.
  std::optional<pid_t> first_ended() const { return first_ended_; }

 private:
  int descriptor_ = -1;
  std::optional<pid_t> first_ended_;
};

struct Command {
  std::vector<std::string> words;         // the program, by path or from the PATH, and its arguments
  std::vector<std::string> environment;   // "NAME=value", on top of ours
  std::vector<std::string> without = {};  // names of variables of ours that it does not get

  std::string text() const;
};

// Where a child's output goes; to ours, where not given. Without an input it finds nothing to read.
struct Descriptors {
  int input = -1;
  int output = -1;
  int errors = -1;
};

// What becomes of a child.
struct Ties {
  int when_we_die = SIGTERM;  // asked, not killed: mpirun then ends its ranks and removes its files
  bool own_group = false;     // leads a process group: what it starts is signalled and ended with it
};

// A program that was started. It gets a signal when we die, and is ended when this object is.
class Child {
 public:
  // An Error where there is no such program.
  explicit Child(const Command& command, const Descriptors& descriptors = {}, const Ties& ties = {});
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  bool running();
  // Stopped, as by SIGSTOP, and not continued since.
  bool stopped() const;
  // How it ended, once it did: empty where it ended well, otherwise "ended with exit code 3".
  const std::string& problem() const { return problem_; }
  // As a shell tells it: the exit code, or 128 and the signal that ended it.
  int exit_code() const { return exit_code_; }
  bool ended_by_signal() const { return exit_code_ > 128 && by_signal_; }
  // The most memory that it held at a time, or that one of those held which it started and waited for: known once its
  // number was let go of. No less than what we held when we started it.
  Bytes peak_memory() const { return peak_memory_; }

  // Also the number of its group, where it has its own; that stays its until this object goes.
  pid_t pid() const { return pid_; }
  // To it alone, if it still runs; and to all of its group, also when only others of it still run.
  void signal(int number);
  void signal_group(int number);
  // Kills what is left of it and of its group, and lets go of its number.
  void end_group();

 private:
  void let_go();

  pid_t pid_ = -1;
  bool own_group_ = false;
  bool ended_ = false;
  bool by_signal_ = false;
  int exit_code_ = 0;
  Bytes peak_memory_;
  std::string problem_;
};

// "signal 9 (Killed)".
std::string describe_signal(int number);

// A pipe, of which a program that we start sees only the end it is given.
class Pipe {
 public:
  Pipe();
  Pipe(Pipe&& other) noexcept;
  Pipe& operator=(Pipe&&) = delete;
  ~Pipe();

  int output() const { return ends_[0]; }
  int input() const { return ends_[1]; }
  void close_output();
  void close_input();

 private:
  std::array<int, 2> ends_{-1, -1};
};

// How long `poll` may wait: up to a minute, so that whoever waits looks up now and then.
int poll_milliseconds(Duration duration);

struct Output {
  std::string text;    // what it printed
  std::string errors;  // what it printed on standard error
  Bytes peak_memory;   // as of Child
};

// Runs to the end. An Error that tells the last of what it said where it fails or is late; then it and what it started
// have been ended.
Output run(const Command& command, Duration patience, Signals& signals);

// Waits for all; an Error as soon as one fails.
void wait_for_all(std::vector<Child>& children, Signals& signals);

// Makes us the parent of processes that lose theirs, so that `end_orphans` finds them. It ends every child that we
// have.
void adopt_orphans();
void end_orphans();
// Lets go of children that have ended, except for `ours`.
void bury_orphans(const std::vector<pid_t>& ours);

// A folder for what a program leaves lying about; removed with this object.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// This program's own file.
std::filesystem::path own_path();

}  // namespace tutti::cli
