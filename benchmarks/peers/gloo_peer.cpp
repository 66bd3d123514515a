// Gloo as PyTorch uses it: c10d's ProcessGroupGloo, a process per rank, over the loopback interface. Its all-reduce, or
// with --ping-pong its messages.
//
// Started by a user it starts itself once per rank; the processes meet through a file in a scratch folder.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "cli/process.hpp"
#include "peers/peer.hpp"

namespace tutti::bench {
namespace {

std::vector<at::Tensor> tensors_of(std::span<std::byte> memory) {
  return {at::from_blob(memory.data(), {static_cast<std::int64_t>(memory.size())}, at::kByte)};
}

std::function<void()> connect(c10d::ProcessGroupGloo& group, const cli::PingPongSide& side) {
  return [&group, peer = side.peer, begins = side.begins, outgoing = tensors_of(side.outgoing),
          incoming = tensors_of(side.incoming)]() mutable {
    constexpr int kTag = 1;
    if (begins) group.send(outgoing, peer, kTag)->wait();
    group.recv(incoming, peer, kTag)->wait();
    if (!begins) group.send(outgoing, peer, kTag)->wait();
  };
}

void run_rank(const PeerRequest& request) {
  const int ranks = request.ranks.front();
  // Lateness is for whoever started us to notice: a peer that dies is seen at once.
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::hours(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  c10d::ProcessGroupGloo group(c10::make_intrusive<c10d::FileStore>(request.meeting_place, ranks), request.rank, ranks,
                               options);
  std::vector<at::Tensor> array(1);
  measure_peer(request, {.engine = "gloo",
                         .algorithm = "default",
                         .rank = request.rank,
                         .ranks = ranks,
                         .use_array =
                             [&](std::span<float> memory) {
                               array[0] =
                                   at::from_blob(memory.data(), {static_cast<std::int64_t>(memory.size())}, at::kFloat);
                             },
                         .all_reduce = [&] { group.allreduce(array)->wait(); },
                         .connect = [&](const cli::PingPongSide& side) { return connect(group, side); },
                         .agree =
                             [&](std::uint64_t of_rank_0) {
                               std::vector<at::Tensor> number{at::from_blob(&of_rank_0, {1}, at::kLong)};
                               group.barrier()->wait();
                               group.broadcast(number)->wait();
                               return of_rank_0;
                             }});
}

void launch(const PeerRequest& request) {
  cli::Signals signals;
  for (const int ranks : request.ranks) {
    const cli::ScratchFolder scratch;
    std::vector<cli::Child> processes;
    for (int rank = 0; rank < ranks; ++rank) {
      cli::Command command{
          .words = {cli::own_path(), "--rank", std::to_string(rank), "--meeting-place", scratch.path() / "store"},
          .environment = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"}};
      for (const std::string& word : request.words(ranks)) command.words.push_back(word);
      processes.emplace_back(command);
    }
    cli::wait_for_all(processes, signals);
  }
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_peer("gloo_peer", argc, argv, [](const tutti::bench::PeerRequest& request) {
    if (request.rank >= 0) {
      tutti::bench::run_rank(request);
    } else {
      tutti::bench::launch(request);
    }
  });
}
