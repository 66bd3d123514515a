// Starting other programs, and leaving none of them behind.
//
//   Signals signals;                                          // from now on SIGINT and SIGTERM are an Interrupted
//   Output output = run({.words = {"mpirun", "-n", "2", "true"}}, 5min, signals);
//
// For programs of one thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti::bench {

// Somebody pressed Ctrl-C or ended us in another way.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// Takes the signals that end a program, and those that a child ended, so that a wait can see them. One per program.
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  // Readable when one came.
  int descriptor() const { return descriptor_; }
  // Takes all that came; throws Interrupted when one of them should end us.
  void take();

 private:
  int descriptor_ = -1;
};

struct Command {
  std::vector<std::string> words;        // the program, by path or from the PATH, and its arguments
  std::vector<std::string> environment;  // "NAME=value", on top of ours

  std::string text() const;
};

// Where a child's output goes; to ours, where not given.
struct Descriptors {
  int output = -1;
  int errors = -1;
};

// A program that was started. It is asked to end when we die, and ended when this object is.
class Child {
 public:
  // An Error where there is no such program.
  explicit Child(const Command& command, const Descriptors& descriptors = {});
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  bool running();
  // How it ended, once it did: empty where it ended well, otherwise "ended with exit code 3".
  const std::string& problem() const { return problem_; }

 private:
  pid_t pid_ = -1;
  std::string problem_;
};

struct Output {
  std::string text;    // what it printed
  std::string errors;  // what it printed on standard error
};

// Runs to the end. An Error that tells the last of what it said where it fails or is late; then it and what it started
// have been ended.
Output run(const Command& command, Duration patience, Signals& signals);

// Waits for all; an Error as soon as one fails.
void wait_for_all(std::vector<Child>& children, Signals& signals);

// Makes us the parent of processes that lose theirs, so that `end_orphans` finds them.
void adopt_orphans();
void end_orphans();

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

}  // namespace tutti::bench
