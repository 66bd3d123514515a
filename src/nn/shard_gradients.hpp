// What a worker has computed in a step: the losses of its shards, and their gradients, added up as far as the tree over
// all shards allows (sync/shard_fold.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>
#include <tutti/nn/weighted_loss.hpp>
#include <tutti/sync/shard_fold.hpp>

#include "module_parameters.hpp"

namespace tutti::detail {

struct ShardLoss {
  double loss = 0;
  double weight = 0;  // 0 where the shard has no rows, or none that count
};

// A loss, looked at: a UsageError where it is no loss that can be, several numbers, one that depends
// on nothing, a weight below 0.
// `whose` begins the sentence: "shard 1", "rank 0".
ShardLoss weigh(const WeightedLoss& loss, const std::string& whose, std::int64_t rows);
inline std::string shard_name(int shard) { return "shard " + std::to_string(shard); }

// Gradients of loss * weight, into the parameters that it depends on.
void backward(const WeightedLoss& loss, double weight);

void discard_gradients(const std::vector<ModuleParameter>& parameters);

// Takes the gradients out of the parameters, laid out as these are; undefined where there is none. What a tied
// parameter has got under its names is added up in their order. A UsageError names a parameter whose gradient is
// sparse.
std::vector<torch::Tensor> take_gradients(const std::vector<ModuleParameter>& parameters);

class ShardGradients {
 public:
  explicit ShardGradients(int shards) : shards_(shards) {}

  // Shards come in order. Gradients by parameter, or none where nothing of the shard counts.
  void add(int shard, std::vector<torch::Tensor> gradients);

  // What another worker has computed of the shards that follow.
  void append(ShardGradients next);

  std::size_t part_count() const { return parts_.size(); }
  // Part p's gradient of a parameter; undefined where there is none.
  torch::Tensor gradient(std::size_t part, std::size_t parameter) const;

  // Of one parameter, behind those of the workers before.
  void append_parts(std::size_t parameter, std::vector<ShardPart>& parts) const;
  // The first gradient of a parameter that is there; undefined where none is.
  torch::Tensor first_of(std::size_t parameter) const;

 private:
  struct Part {
    int first = 0;
    int count = 1;
    std::vector<torch::Tensor> gradients;
  };

  void add(Part part);

  int shards_;
  std::vector<Part> parts_;
};

}  // namespace tutti::detail
