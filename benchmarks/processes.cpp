// `./bench processes`: all-reduce and ping-pong between processes of this host, in one run: tutti through shared memory
// and over sockets, Gloo and Open MPI.
#include <string>
#include <vector>

#include "collective_suite.hpp"
#include "processes_report.hpp"

namespace tutti::bench {
namespace {

// tutti as processes that it starts itself.
std::vector<std::string> launched(std::vector<std::string> options, const std::vector<std::string>& verb) {
  std::vector<std::string> words{"tutti", "launch", "--processes", "<ranks>", "--no-prefix"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "bench"});
  words.insert(words.end(), verb.begin(), verb.end());
  return words;
}

std::vector<EngineTurn> turns() {
  const std::vector<std::string> all_reduce{"all-reduce", "--json", "--algorithm", "Auto,Ring"};
  const std::vector<std::string> ping_pong{"ping-pong", "--json"};
  return {{"tutti-shm", "all-reduce", launched({}, all_reduce)},
          {"tutti-c10d", "all-reduce", launched({"--no-shared-memory"}, all_reduce)},
          {"gloo", "all-reduce", {"gloo_peer"}},
          {"openmpi", "all-reduce", {"openmpi_peer"}},
          {"tutti-shm", "ping-pong", launched({}, ping_pong)},
          {"tutti-c10d", "ping-pong", launched({"--no-shared-memory"}, ping_pong)},
          {"gloo", "ping-pong", {"gloo_peer", "--ping-pong"}},
          {"openmpi", "ping-pong", {"openmpi_peer", "--ping-pong"}}};
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  using namespace tutti::bench;
  const CollectiveSuite suite{
      .name = "processes",
      .summary =
          "Times all-reduces of float32, sum, and messages between processes of this host: tutti "
          "through shared memory and over sockets, Gloo and Open MPI.",
      .turns = turns(),
      .report = [](const std::vector<tutti::cli::BenchResult>& points) {
        print_process_tables(points);
        print_targets("tutti's speed over theirs", judge_process_targets(points));
      }};
  return run_suite(suite, argc, argv);
}
