// A command line of options, read with CLI11 so that every mistake is one plain sentence. CLI11's headers take ten
// seconds to compile, so they stay behind this one.
//
//   CommandLine line("Times an all-reduce.", "tutti bench all-reduce");
//   line.option("--ranks", ranks, "numbers of ranks");        // what is in `ranks` is the default
//   line.flag("--json", json, "print one JSON object a line");
//   if (!line.parse(arguments)) return;                        // --help was asked for, and printed
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/measure.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tutti::cli {

// One option of a command line that lives at least as long.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option& option) : option_(&option) {}

  const CommandOption& excludes(const CommandOption& other) const;
  const CommandOption& hide() const;  // from --help
  bool was_given() const;

 private:
  CLI::Option* option_;
};

// What options write to must live until parse() returns.
class CommandLine {
 public:
  CommandLine(std::string summary, std::string program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `name` is "--port", or "-n,--processes". The value there is shown as the default, unless it is empty.
  CommandOption option(const std::string& name, std::string& value, const std::string& help);
  // May be given several times.
  CommandOption option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  CommandOption option(const std::string& name, double& value, const std::string& help);
  CommandOption option(const std::string& name, int& value, int least, int most, const std::string& help);
  // A word without an option before it; empty where it is not there.
  CommandOption positional(const std::string& name, std::string& value, const std::string& help);
  CommandOption flag(const std::string& name, bool& value, const std::string& help);

  // --seconds; and --seconds or --repetitions.
  CommandOption seconds(double& value);
  void effort(Effort& value);

  // What --help ends with.
  void footer(std::string text);

  // False where help was asked for, and printed. A UsageError for what is not an option, with the nearest.
  bool parse(std::span<const std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace tutti::cli
