// Makes a torch::nn::Module data-parallel over ranks: each has one replica, its own rows and its own optimizer.
//
//   tutti::c10d::run([](tutti::Communicator& world) {
//     Net net;
//     tutti::DistributedModule model(net.ptr(), std::move(world));       // all ranks now have rank 0's parameters
//     torch::optim::SGD optimizer(net->parameters(), 0.1);
//     for (auto& batch : *my_share) {
//       net->zero_grad(true);
//       model.backward(cross_entropy(net->forward(batch.data), batch.target));     // the mean over all ranks
//       optimizer.step();
//     }
//     model.join();                                                       // until those who have more batches are done
//   });
//
// Gradients are exchanged in buckets, each while backward goes on, in one order on all ranks: that in which rank 0's
// became ready in the first round. `loss.backward()` does the same as model.backward(loss).
//
// A round that fails throws on every rank. Where a rank's own pass threw, the others hear of it (of a bare
// `loss.backward()` with that rank's next call), buffers are as after the last round that went well, and the next one
// works. Where a rank is lost, or its hook threw, later rounds say so at once, and `rebuild` goes on with those left.
//
// Threads: one at a time uses it, and the module. A thread of its own exchanges buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <tutti/base/bytes.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/nn/buffers.hpp>
#include <tutti/nn/rows.hpp>
#include <tutti/nn/weighted_loss.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/sync/gradient_buffers.hpp>
#include <tutti/sync/gradient_compressor.hpp>

namespace tutti {

// What happens in a round, for tracing and tests. Told on the thread where it happens.
struct BucketEvent {
  enum class Kind : std::uint8_t { gradient_ready, bucket_started, bucket_done };
  Kind kind = Kind::gradient_ready;
  std::string_view parameter = {};  // of gradient_ready
  std::size_t bucket = 0;
};

// Exchanges one bucket in one's own way: its gradients become the mean over all ranks, the same on all. Called in the
// same order on every rank.
using CommunicationHook = std::function<void(Communicator&, GradientBuffers&)>;

struct DistributedOptions {
  Bytes bucket_size{4 << 20};
  Bytes first_bucket_size{1 << 20};  // smaller, so that the exchange begins early
  AllReduceStrategy algorithm = Auto{};
  Compression compression = NoCompression{};
  CommunicationHook hook = {};  // instead of algorithm and compression
  // A step of `backward(batch, closure)` is cut into so many shards, whoever computes them: the same bits on any number
  // of ranks. One a rank, where 0.
  int logical_shards = 0;
  std::optional<Buffers> buffers = {};  // per_shard with logical shards, otherwise follow_first
  bool sync_batch_norm = false;         // in `backward(batch, closure)`: statistics over all ranks
  double clip_norm = 0;                 // the largest norm of the whole gradient; 0 is none
  bool refuse_nan = true;  // a mean that is not finite is an error on all ranks; gradients are undefined then
  bool autocast = false;   // in `backward(batch, closure)`
  std::uint64_t seed = 0;  // of what `backward(batch, closure)` draws
  std::function<void(const BucketEvent&)> on_event = {};
};

struct RoundReport {
  double loss = 0;                       // the mean over all ranks, by weight; 0 after a bare loss.backward()
  double weight = 0;                     // of all ranks together
  double gradient_norm = 0;              // with clip_norm: before it was clipped
  std::vector<std::string> unused = {};  // parameters that no rank's loss depended on; their gradients are undefined
};

class DistributedModule {
 public:
  // All ranks come with modules of the same parameters, which then have rank 0's values; so have buffers. PeerError
  // disagreement on all ranks where they differ, naming the parameter and both shapes.
  DistributedModule(std::shared_ptr<torch::nn::Module> module, Communicator world,
                    const DistributedOptions& options = {});
  ~DistributedModule();
  DistributedModule(const DistributedModule&) = delete;
  DistributedModule& operator=(const DistributedModule&) = delete;

  // Gradients become the mean over all ranks, by weight; without one all count the same. Under no_sync the weights of
  // losses that have one count in the round that synchronises.
  void backward(const torch::Tensor& loss, std::optional<double> weight = {});

  // The same for a batch that all ranks bring whole: each computes the loss of its rows, closure(rows), with draws and
  // buffers of its logical shards. Gradients of before do not count. Returns the loss of the whole batch.
  template <typename Batch, typename Closure>
  requires(!std::is_arithmetic_v<std::remove_cvref_t<Closure>>) double backward(const Batch& batch, Closure&& closure) {
    return backward_rows([&] { return row_count(batch); },
                         [&](const Rows& rows) -> WeightedLoss {
                           auto mine = slice_rows(batch, rows);
                           return closure(mine);
                         });
  }

  // The optimizer's step, with tutti's kernels where they know it: the same bits as DataParallel's. torch's own
  // optimizer.step() does as well.
  void step(torch::optim::Optimizer& optimizer);

  // While it lives gradients stay with the rank, and add up: for the steps before the one that synchronises.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedModule& module) : module_(module) { module_.count_unsynced(1); }
    ~NoSync() { module_.count_unsynced(-1); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedModule& module_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // This rank has no more batches: with what is left of passes under no_sync, and then with nothing, it takes part
  // until no rank has any, and then has the parameters and buffers of one that went on to the last.
  //
  // With the optimizer given on all ranks, all have that one's state of it as well: where it has momentum and training
  // goes on, they need it. A round that fails for another rank's sake throws here, too; call it again then.
  void join(torch::optim::Optimizer* optimizer = nullptr);

  // After a PeerError: goes on with those left, which all name the same ranks; they get the first one's parameters, and
  // its state of the optimizer where that is given.
  void rebuild(std::span<const Rank> survivors, torch::optim::Optimizer* optimizer = nullptr);

  Rank rank() const;
  int size() const;
  // Of the last round.
  const RoundReport& report() const;
  // Rounds that went well, and to go on after so many, the same on all ranks: what `backward(batch, closure)` draws
  // follows from their number.
  std::uint64_t steps_taken() const;
  void go_on_after(std::uint64_t steps);
  // What the compression saved this rank up to now. Nothing travelled where there is none.
  CompressionTally compression_tally() const;
  // In one line: ranks, buckets, which path the gradients take.
  std::string describe() const;
  // For calls of one's own between rounds.
  Communicator& world();

 private:
  friend class NoSync;
  void count_unsynced(int change);
  double backward_rows(const std::function<std::int64_t()>& count,
                       const std::function<WeightedLoss(const Rows&)>& loss);

  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace tutti
