// A module's buffers (the running statistics of batch norm), of which every logical shard has its own while it is
// computed, whichever replica computes it.
//
//   buffers.begin(module);
//   ... on each worker, for each of its shards: take(shard, replica); forward; keep(shard, replica);
//   buffers.finish(module);        // or undo(module), and nothing has happened
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <tutti/collective/communicator.hpp>
#include <tutti/nn/buffers.hpp>

namespace tutti::detail {

class ShardBuffers {
 public:
  // Buffers whose name is private stay each shard's own in any mode, and the module gets the first one's.
  ShardBuffers(const torch::nn::Module& module, int shards, Buffers mode,
               const std::function<bool(const std::string&)>& is_private = {});

  // A UsageError names a buffer that a replica lacks, or has in another shape.
  void refuse_unless_like(const torch::nn::Module& replica) const;

  // What the module's buffers were set to since the last step counts for all shards.
  void begin(const torch::nn::Module& module);
  // Nothing has been computed yet.
  void forget();
  void take(int shard, const torch::nn::Module& replica) const;
  void keep(int shard, const torch::nn::Module& replica);
  void finish(const torch::nn::Module& module);
  // The same where other ranks have computed other shards: tells each other first. Rank r has computed chunk r
  // of them.
  void finish(const torch::nn::Module& module, Communicator& world);
  // Tells other ranks, and hears from them, what finish(module) needs: for those who have more to do in between.
  void exchange(Communicator& world);
  // Between steps, where ranks have taken some without telling each other: all know everybody's from now on, and what
  // follows the first shard follows that of rank 0.
  void share(const torch::nn::Module& module, Communicator& world);
  void undo(const torch::nn::Module& module) const;

  const std::vector<std::string>& names() const { return names_; }
  // Whether each shard has a buffer to itself between steps.
  bool is_by_shard(std::size_t buffer) const { return mode_ == Buffers::per_shard || is_private_[buffer]; }
  // What a shard has between steps: for checkpoints.
  std::size_t shards() const { return kept_.size(); }
  torch::Tensor& kept(std::size_t shard, std::size_t buffer) { return kept_[shard][buffer]; }

 private:
  using Tensors = std::vector<torch::Tensor>;

  Buffers mode_;
  std::vector<std::string> names_;
  std::vector<bool> is_private_;
  Tensors published_;              // what the module had after the last step
  std::vector<Tensors> kept_;      // by shard
  std::vector<Tensors> computed_;  // by shard, of the step in progress; none where it has no rows
};

}  // namespace tutti::detail
