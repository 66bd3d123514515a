// Open MPI's MPI_Allreduce, in place, or with --ping-pong its MPI_Send and MPI_Recv, with its defaults.
//
// Started by a user it starts itself under mpirun, once per number of ranks.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>
#include <tutti/base/error.hpp>

#include "cli/process.hpp"
#include "peers/peer.hpp"

namespace tutti::bench {
namespace {

std::function<void()> connect(const cli::PingPongSide& side) {
  return [side] {
    constexpr int kTag = 1;
    const auto count = static_cast<int>(side.outgoing.size());
    const auto send = [&] { MPI_Send(side.outgoing.data(), count, MPI_BYTE, side.peer, kTag, MPI_COMM_WORLD); };
    if (side.begins) send();
    MPI_Recv(side.incoming.data(), count, MPI_BYTE, side.peer, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!side.begins) send();
  };
}

void run_rank(const PeerRequest& request) {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::span<float> array;
  measure_peer(request, {.engine = "openmpi",
                         .algorithm = "default",
                         .rank = rank,
                         .ranks = ranks,
                         .use_array = [&](std::span<float> memory) { array = memory; },
                         .all_reduce =
                             [&] {
                               MPI_Allreduce(MPI_IN_PLACE, array.data(), static_cast<int>(array.size()), MPI_FLOAT,
                                             MPI_SUM, MPI_COMM_WORLD);
                             },
                         .connect = connect,
                         .agree =
                             [](std::uint64_t of_rank_0) {
                               MPI_Barrier(MPI_COMM_WORLD);
                               MPI_Bcast(&of_rank_0, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
                               return of_rank_0;
                             }});
}

void launch(const PeerRequest& request) {
  for (const Bytes& size : request.sizes) {
    const std::size_t element = request.ping_pong ? 1 : sizeof(float);
    if (size.value / element > std::numeric_limits<int>::max())
      throw UsageError(fmt::format("--bytes: MPI counts elements in an int, which {} overflows", to_string(size)));
  }
  cli::Signals signals;
  for (const int ranks : request.ranks) {
    cli::Command command{.words = {"mpirun", "-n", std::to_string(ranks)},
                         .environment = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"}};
    if (::geteuid() == 0) command.words.emplace_back("--allow-run-as-root");
    // Where each rank has a core of its own, mpirun binds it there, as it does by default.
    if (static_cast<unsigned>(ranks) > std::thread::hardware_concurrency())
      command.words.emplace_back("--oversubscribe");
    command.words.emplace_back(cli::own_path());
    for (const std::string& word : request.words(ranks)) command.words.push_back(word);
    std::vector<cli::Child> processes;
    processes.emplace_back(command);
    cli::wait_for_all(processes, signals);
  }
}

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  const bool is_rank = tutti::bench::started_by_mpirun();
  if (is_rank) MPI_Init(&argc, &argv);
  const int code = tutti::bench::run_peer("openmpi_peer", argc, argv, [&](const tutti::bench::PeerRequest& request) {
    if (is_rank) {
      tutti::bench::run_rank(request);
    } else {
      tutti::bench::launch(request);
    }
  });
  // The others wait for a rank that failed.
  if (is_rank && code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  if (is_rank) MPI_Finalize();
  return code;
}
