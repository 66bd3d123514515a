#include "cli/command_line.hpp"

#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti::cli {
namespace {

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

const CommandOption& CommandOption::excludes(const CommandOption& other) const {
  option_->excludes(other.option_);
  return *this;
}

const CommandOption& CommandOption::hide() const {
  option_->group("");
  return *this;
}

bool CommandOption::was_given() const { return option_->count() > 0; }

CommandLine::CommandLine(std::string summary, std::string program)
    : app_(std::make_unique<CLI::App>(std::move(summary), std::move(program))) {
  app_->allow_extras();
}

CommandLine::~CommandLine() = default;

CommandOption CommandLine::option(const std::string& name, std::string& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  if (!value.empty()) option->capture_default_str();
  return CommandOption(*option);
}

CommandOption CommandLine::option(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return CommandOption(*app_->add_option(name, values, help)->take_all()->allow_extra_args(false));
}

CommandOption CommandLine::option(const std::string& name, double& value, const std::string& help) {
  return CommandOption(*app_->add_option(name, value, help)->capture_default_str());
}

CommandOption CommandLine::option(const std::string& name, int& value, int least, int most, const std::string& help) {
  return CommandOption(*app_->add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str());
}

CommandOption CommandLine::positional(const std::string& name, std::string& value, const std::string& help) {
  return CommandOption(*app_->add_option(name, value, help));
}

CommandOption CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  return CommandOption(*app_->add_flag(name, value, help));
}

CommandOption CommandLine::seconds(double& value) {
  return CommandOption(*app_->add_option("--seconds", value, "about how long to measure each point")
                            ->check(problem_with_seconds)
                            ->capture_default_str());
}

void CommandLine::effort(Effort& value) {
  const CommandOption seconds_option = seconds(value.seconds);
  CommandOption(*app_->add_option("--repetitions", value.repetitions, "or how often")
                     ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000})))
      .excludes(seconds_option);
}

void CommandLine::footer(std::string text) { app_->footer(std::move(text)); }

bool CommandLine::parse(std::span<const std::string> arguments) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (const std::vector<std::string> rest = app_->remaining(); !rest.empty()) refuse_unknown(*app_, rest.front());
  return true;
}

}  // namespace tutti::cli
