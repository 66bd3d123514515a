// `./bench coordinator`: what it costs that gradients come from several threads, and what is gained where these share
// parameters without locks. Each part is a file of its own (coordinator_parts.hpp).
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "coordinator_parts.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

// In the order in which they are measured.
constexpr std::array<std::string_view, 4> kParts{"applied", "hogwild", "slow", "alone"};
constexpr std::array kMeasures{measure_applied, measure_hogwild, measure_slow, measure_alone};
static_assert(kParts.size() == kMeasures.size());

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  CoordinatorRequest request;
  std::string parts = fmt::format("{}", fmt::join(kParts, ","));
  std::string producers = fmt::format("{}", fmt::join(request.producers, ","));
  std::string sizes = "1KiB,16KiB,256KiB,1MiB,4MiB,16MiB,64MiB";
  cli::CommandLine line("Times coordinators of gradients, and parameters that threads share without locks.",
                        "./bench coordinator");
  line.option("--part", parts, "what to measure, with commas between");
  line.option("--producers", producers, "applied: threads that add gradients, with commas between");
  line.option("--bytes", sizes, "applied: bytes of the gradients, with commas between");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return {};
  request.producers = cli::parse_counts("--producers", producers, 64);
  request.sizes = cli::parse_sizes("--bytes", sizes);
  const std::vector<std::string> wanted = parse_names("--part", parts, kParts);
  std::vector<std::string> failures;
  for (std::size_t part = 0; part < kParts.size(); ++part) {
    if (std::ranges::find(wanted, kParts[part]) == wanted.end()) continue;
    for (std::string& failure : kMeasures[part](request)) failures.push_back(std::move(failure));
    if (!request.run.json) fmt::print("\n");
  }
  return failures;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
