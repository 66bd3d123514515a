// Gradients brought together by a collective: over threads, processes or hosts, with any algorithm.
//
//   CollectiveGradientSync sync(std::move(world), {.algorithm = Ring{}});
//   sync.sync_gradients(gradients);
//
//   CollectiveGradientSync less(std::move(world), {.compression = TopK{.fraction = 0.01}});
//   less.sync_buffers(gradients);                       // an array without names counts as one gradient, named ""
//
// A round that fails ends for everybody with a PeerError that says who: a worker that brought another length (nothing
// was touched), one that left, threw or died, one that is later than the deadline. The next round works: among those
// who are left, with the mean over these; whoever is found to be lost between two rounds is left out as well.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include <tutti/collective/communicator.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/sync/gradient_compressor.hpp>
#include <tutti/sync/gradient_sync.hpp>
#include <tutti/sync/sync_strategy.hpp>

namespace tutti {

struct CollectiveGradientSyncOptions {
  SyncStrategy strategy = SyncStrategy::all_reduce;
  AllReduceStrategy algorithm = Auto{};
  Rank root{0};  // with SyncStrategy::reduce_to_root; where it is lost, the first of those left is
  bool reproducible = false;
  Compression compression = NoCompression{};  // with SyncStrategy::reduce_to_root it travels as in an all-reduce
};

class CollectiveGradientSync final : public GradientSync {
 public:
  explicit CollectiveGradientSync(Communicator world, const CollectiveGradientSyncOptions& options = {});

  void sync_gradients(Array gradients) override;
  void sync_buffers(GradientBuffers& gradients) override;
  void sync_exactly(Array numbers) override;
  bool is_distributed() const override { return num_workers() > 1; }
  // Who took part in the last round; before the first one, all.
  int num_workers() const override { return num_workers_; }
  // This worker's rank in the communicator that it began with. Errors name workers by it too.
  int worker_id() const { return workers_[static_cast<std::size_t>(world_.rank().value)].value; }

  // What it saved, and the state for checkpoints. Without compression it has nothing to do, and counts nothing.
  GradientCompressor& compressor() { return compressor_; }
  const GradientCompressor& compressor() const { return compressor_; }

  // Takes no part any more, and says why: the others' rounds end with an error that repeats it.
  void leave(std::string_view why);

 private:
  template <typename Exchange>
  void run_round(Exchange exchange);
  void exchange(Array gradients);
  void confirm();
  bool go_on_with_those_left();
  void rebuild();
  void note(const PeerError& error);
  bool note_lost(std::span<const Rank> ranks);
  void exchange_compressed(GradientBuffers& gradients);
  bool is_compressed() const { return !std::holds_alternative<NoCompression>(options_.compression); }
  // In world_, of the mean that only one gets.
  Rank root() const;
  // In terms of the workers at the beginning.
  Failure translated(const Failure& failure) const;

  Communicator world_;
  const CollectiveGradientSyncOptions options_;
  std::vector<Rank> workers_;  // by rank in world_: who that was at the beginning
  std::vector<Rank> lost_;     // of world_, which is broken while it is set
  bool is_broken_ = false;
  int num_workers_ = 1;
  std::int64_t rounds_ = 0;           // that all have
  std::optional<Failure> owed_ = {};  // of a round that has failed for the others already
  GradientCompressor compressor_;
};

}  // namespace tutti
