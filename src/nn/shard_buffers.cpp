#include "shard_buffers.hpp"

#include <cstring>
#include <sstream>

#include <fmt/format.h>
#include <tutti/base/chunk.hpp>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti::detail {
namespace {

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& tensor : tensors) result.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  return result;
}

void copy(const std::vector<torch::Tensor>& to, const std::vector<torch::Tensor>& from) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

// Of equal tensors, in order; of integers there is none, and the first counts.
torch::Tensor mean_of(const std::vector<torch::Tensor>& tensors) {
  torch::Tensor mean = tensors.front().clone();
  const bool is_double = mean.scalar_type() == torch::kFloat64;
  if (!is_double && mean.scalar_type() != torch::kFloat32) return mean;
  std::vector<const void*> sources;
  for (const torch::Tensor& tensor : tensors) sources.push_back(tensor.data_ptr());
  void* destination = mean.data_ptr();
  fold_all(ReduceOp::mean, is_double ? DataType::float64 : DataType::float32, sources, {&destination, 1},
           static_cast<std::size_t>(mean.numel()));
  return mean;
}

}  // namespace

ShardBuffers::ShardBuffers(const torch::nn::Module& module, int shards, Buffers mode,
                           const std::function<bool(const std::string&)>& is_private)
    : mode_(mode) {
  for (const auto& item : module.named_buffers()) {
    names_.push_back(item.key());
    is_private_.push_back(is_private && is_private(item.key()));
  }
  if (names_.empty()) return;
  published_ = copies(module.buffers());
  for (int shard = 0; shard < shards; ++shard) kept_.push_back(copies(published_));
  computed_.resize(kept_.size());
}

void ShardBuffers::refuse_unless_like(const torch::nn::Module& replica) const {
  const auto own = replica.named_buffers();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const torch::Tensor* buffer = own.find(names_[i]);
    if (buffer == nullptr) throw UsageError(fmt::format("a replica has no buffer '{}'", names_[i]));
    if (buffer->sizes() != published_[i].sizes()) {
      std::ostringstream shapes;
      shapes << published_[i].sizes() << " in the first replica and " << buffer->sizes() << " in another";
      throw UsageError(fmt::format("the buffer '{}' is {}", names_[i], shapes.str()));
    }
  }
  if (own.size() != names_.size()) throw UsageError("a replica has buffers that the first one lacks");
}

void ShardBuffers::begin(const torch::nn::Module& module) {
  if (names_.empty()) return;
  forget();
  const Tensors now = module.buffers();
  bool changed = false;
  for (std::size_t i = 0; i < now.size(); ++i) changed = changed || !torch::equal(now[i], published_[i]);
  if (!changed) return;
  published_ = copies(now);
  for (Tensors& one : kept_) one = copies(published_);
}

void ShardBuffers::forget() { computed_.assign(kept_.size(), {}); }

void ShardBuffers::take(int shard, const torch::nn::Module& replica) const {
  if (!names_.empty()) copy(replica.buffers(), kept_[static_cast<std::size_t>(shard)]);
}

void ShardBuffers::keep(int shard, const torch::nn::Module& replica) {
  if (!names_.empty()) computed_[static_cast<std::size_t>(shard)] = copies(replica.buffers());
}

void ShardBuffers::finish(const torch::nn::Module& module) {
  if (names_.empty()) return;
  std::vector<const Tensors*> counted;
  for (std::size_t shard = 0; shard < kept_.size(); ++shard) {
    if (!computed_[shard].empty()) {
      kept_[shard] = std::move(computed_[shard]);
      counted.push_back(&kept_[shard]);
    } else if (mode_ == Buffers::per_shard) {
      counted.push_back(&kept_[shard]);
    }
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    std::vector<torch::Tensor> its;
    for (const Tensors* one : counted) its.push_back((*one)[i]);
    if (its.empty()) return;  // a step of nobody
    if (is_private_[i]) {
      published_[i] = kept_.front()[i].clone();
    } else {
      published_[i] = mode_ == Buffers::follow_first ? its.front().clone() : mean_of(its);
    }
    if (is_by_shard(i)) continue;
    for (Tensors& one : kept_) one[i] = published_[i].clone();
  }
  copy(module.buffers(), published_);
}

void ShardBuffers::finish(const torch::nn::Module& module, Communicator& world) {
  exchange(world);
  finish(module);
}

// Everybody sends as much: a flag for each of as many shards as the first has, and their buffers one behind the other.
void ShardBuffers::exchange(Communicator& world) {
  if (names_.empty()) return;
  const auto shards_of = [&](int rank) { return chunk(kept_.size(), world.size(), rank); };
  std::size_t shard_bytes = sizeof(std::int64_t);
  for (const torch::Tensor& tensor : published_) shard_bytes += tensor.nbytes();
  const std::size_t words = (shard_bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t);
  const std::size_t rank_words = words * shards_of(0).count;
  std::vector<std::int64_t> mine(rank_words);
  const auto for_each = [&](const Slice& shards, std::int64_t* memory, auto f) {
    for (std::size_t shard = shards.first; shard < shards.end(); ++shard) {
      std::int64_t* its = memory + (shard - shards.first) * words;
      f(shard, *its, reinterpret_cast<std::byte*>(its + 1));
    }
  };
  for_each(shards_of(world.rank().value), mine.data(),
           [&](std::size_t shard, std::int64_t& is_there, std::byte* bytes) {
             is_there = computed_[shard].empty() ? 0 : 1;
             for (const torch::Tensor& tensor : computed_[shard]) {
               std::memcpy(bytes, tensor.data_ptr(), tensor.nbytes());
               bytes += tensor.nbytes();
             }
           });
  std::vector<std::int64_t> all(rank_words * static_cast<std::size_t>(world.size()));
  all_gather(world, mine, all);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank().value) continue;
    for_each(shards_of(rank), all.data() + rank_words * static_cast<std::size_t>(rank),
             [&](std::size_t shard, std::int64_t& is_there, std::byte* bytes) {
               computed_[shard].clear();
               if (is_there == 0) return;
               computed_[shard] = copies(published_);
               for (const torch::Tensor& tensor : computed_[shard]) {
                 std::memcpy(tensor.data_ptr(), bytes, tensor.nbytes());
                 bytes += tensor.nbytes();
               }
             });
  }
}

void ShardBuffers::share(const torch::nn::Module& module, Communicator& world) {
  if (names_.empty()) return;
  begin(module);
  const Slice own = chunk(kept_.size(), world.size(), world.rank().value);
  for (std::size_t shard = own.first; shard < own.end(); ++shard) computed_[shard] = copies(kept_[shard]);
  finish(module, world);
}

void ShardBuffers::undo(const torch::nn::Module& module) const {
  if (!names_.empty()) copy(module.buffers(), published_);
}

}  // namespace tutti::detail
