// A run file as the command line names it: with values that --set gives, found by its own path or by its output folder,
// and read with what plugins bring.
//
//   RunDocument source("train");                      // the verb, for messages
//   source.add_to(line);                              // the file, --set, --plugin
//   source.add_output_to(line);                       // --output
//   if (!line.parse(arguments)) return;
//   const Run run = source.read();
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/json.hpp>
#include <tutti/train/run.hpp>

#include "cli/command_line.hpp"

namespace tutti::cli {

class RunDocument {
 public:
  explicit RunDocument(std::string verb) : verb_(std::move(verb)) {}

  void add_to(CommandLine& line);
  void add_output_to(CommandLine& line);

  // A UsageError where no file was named.
  Run read() const;
  // The document with the values that --set gives.
  JsonDocument with_sets(JsonDocument document) const;

  // The words that name the same run again: as arguments, and for people to type.
  std::vector<std::string> arguments() const;
  std::string words() const;

  // Where the run file lies.
  std::filesystem::path file() const;

 private:
  std::string verb_;
  std::string named_;
  std::vector<std::string> sets_;
  std::vector<std::string> plugins_;
  std::string output_;
  std::optional<CommandOption> output_option_;
};

// As a shell reads it back: quoted where it must be.
std::string shell_word(const std::string& word);

}  // namespace tutti::cli
