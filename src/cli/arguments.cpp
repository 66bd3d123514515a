#include "cli/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti::cli {
namespace {

// More threads than any one machine has cores for; beyond, a typing error is likelier than a wish.
constexpr int kMostRanks = 1024;

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// As a check of CLI11's: empty where there is none. CLI::Range would let a NaN pass.
std::string problem_with_seconds(const std::string& text) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, seconds);
  if (problem == std::errc{} && rest == end && seconds >= 0 && seconds <= 3600) return "";
  return fmt::format("expected a number of seconds from 0 to 3600, found '{}'", text);
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& argument) {
  if (!argument.starts_with('-')) throw UsageError(fmt::format("unexpected argument '{}'", argument));
  const std::string name = argument.substr(0, argument.find('='));
  if (const std::optional<std::string> nearest = nearest_name(name, option_names(app)))
    throw UsageError(fmt::format("there is no option {}; did you mean {}?", name, *nearest));
  throw UsageError(fmt::format("there is no option {}; '{} --help' lists them", name, app.get_name()));
}

}  // namespace

bool parse_arguments(CLI::App& app, std::span<const std::string> arguments) {
  app.allow_extras();
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) refuse_unknown(app, rest.front());
  return true;
}

CLI::Option* add_seconds_option(CLI::App& app, double& seconds) {
  return app.add_option("--seconds", seconds, "about how long to measure each point")->check(problem_with_seconds);
}

void add_effort_options(CLI::App& app, Effort& effort) {
  CLI::Option* seconds = add_seconds_option(app, effort.seconds);
  app.add_option("--repetitions", effort.repetitions, "or how often")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}))
      ->default_str("")
      ->excludes(seconds);
}

std::vector<std::string> parse_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    if (parts.back().empty())
      throw UsageError(fmt::format("{}: '{}' has an empty entry; write values with commas between", option, text));
    begin = end + 1;
  }
  return parts;
}

std::vector<int> parse_counts(std::string_view option, std::string_view text, int most) {
  std::vector<int> counts;
  for (const std::string& part : parse_list(option, text)) {
    int count = 0;
    const char* end = part.data() + part.size();
    const auto [rest, problem] = std::from_chars(part.data(), end, count);
    if (problem != std::errc{} || rest != end || count < 1 || count > most)
      throw UsageError(fmt::format("{}: expected whole numbers from 1 to {}, found '{}'", option, most, part));
    counts.push_back(count);
  }
  return counts;
}

std::vector<int> parse_ranks(std::string_view option, std::string_view text) {
  return parse_counts(option, text, kMostRanks);
}

std::vector<Bytes> parse_sizes(std::string_view option, std::string_view text) {
  std::vector<Bytes> sizes;
  for (const std::string& part : parse_list(option, text)) {
    try {
      sizes.push_back(parse_bytes(part));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", option, error.what()));
    }
  }
  return sizes;
}

std::string join_sizes(std::span<const Bytes> sizes) {
  std::string text;
  for (const Bytes& size : sizes) text += fmt::format("{}{}", text.empty() ? "" : ",", size.value);
  return text;
}

std::size_t parse_choice(std::string_view option, std::string_view text, std::span<const std::string_view> names) {
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const std::optional<std::string> nearest = nearest_name(text, {names.begin(), names.end()});
  throw UsageError(fmt::format("{}: expected {}, found '{}'{}", option, fmt::join(names, ", "), text,
                               nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

}  // namespace tutti::cli
