// Reading a command line with CLI11, so that every mistake is one plain sentence.
//
//   CLI::App app("times an all-reduce", "tutti bench all-reduce");
//   app.add_option("--ranks", ranks, "...");
//   if (!parse_arguments(app, arguments)) return;            // --help was asked for, and printed
//   std::vector<int> counts = parse_ranks("--ranks", ranks);  // "2,4"
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/bytes.hpp>

#include "cli/measure.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tutti::cli {

// False where help was asked for, and printed. A UsageError for what the app does not know, with the nearest option.
bool parse_arguments(CLI::App& app, std::span<const std::string> arguments);

// --seconds; and --seconds or --repetitions.
CLI::Option* add_seconds_option(CLI::App& app, double& seconds);
void add_effort_options(CLI::App& app, Effort& effort);

// "a,b,c" in parts; an empty part is a UsageError naming `option`.
std::vector<std::string> parse_list(std::string_view option, std::string_view text);

// Lists of numbers from 1 to `most`, of rank counts and of sizes ("1KiB,4MiB"); each UsageError names `option`.
std::vector<int> parse_counts(std::string_view option, std::string_view text, int most);
std::vector<int> parse_ranks(std::string_view option, std::string_view text);
std::vector<Bytes> parse_sizes(std::string_view option, std::string_view text);

// A size that a message or a command line can carry on: "1024,4194304".
std::string join_sizes(std::span<const Bytes> sizes);

// One of `names`; otherwise a UsageError naming `option`, all names, and the nearest.
std::size_t parse_choice(std::string_view option, std::string_view text, std::span<const std::string_view> names);

}  // namespace tutti::cli
