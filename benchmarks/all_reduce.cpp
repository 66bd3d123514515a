// `./bench all-reduce`: tutti's all-reduce beside Gloo's, Open MPI's and the limit, in one run. tutti's ranks are
// threads.
#include "all_reduce_report.hpp"
#include "collective_suite.hpp"

int main(int argc, char** argv) {
  using namespace tutti::bench;
  const CollectiveSuite suite{
      .name = "all-reduce",
      .summary = "Times all-reduces of float32, sum: tutti beside Gloo, Open MPI and the limit.",
      .turns = {{"limit", "", {"limit_all_reduce"}},
                {"tutti", "", {"tutti", "bench", "all-reduce", "--json", "--algorithm", "all"}},
                {"gloo", "", {"gloo_peer"}},
                {"openmpi", "", {"openmpi_peer"}}},
      .report = [](const std::vector<tutti::cli::BenchResult>& points) {
        print_all_reduce_tables(points, {"limit", "tutti", "gloo", "openmpi"});
        print_targets("Auto's speed over theirs", judge_all_reduce_targets(points));
      }};
  return run_suite(suite, argc, argv);
}
