// A named algorithm or a compression, carried out over the gradients of replicas that are threads.
//
//   on each worker:  std::string not_finite = exchange.put(worker, gradients, scale);
//   on each worker:  exchange.run(worker);                         // once all have put theirs
//   exchange.take(parameter, sum);                                 // all have the same then; this is replica 0's
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>
#include <tutti/base/deadline.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/sync/gradient_buffers.hpp>
#include <tutti/sync/gradient_compressor.hpp>

#include "replicas.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

struct NamedExchangeOptions {
  AllReduceStrategy algorithm = Auto{};
  Compression compression = NoCompression{};
  std::uint64_t seed = 0;
  Duration deadline = kDefaultDeadline;
};

class NamedExchange {
 public:
  // A UsageError where parameters are of two types.
  NamedExchange(const Replicas& replicas, const NamedExchangeOptions& options);

  // A worker's gradients, the first part of each; zeros where there is none. Returns the name of the first that is not
  // finite, or nothing: a compression keeps what it leaves out, so nothing that is refused may get into run().
  std::string put(int worker, const ShardGradients& gradients, double weight);
  void run(int worker);
  // The sum over all replicas; `weight` as it was put.
  void take(std::size_t parameter, const torch::Tensor& sum, double weight);
  // At the end of a step: what a compression left out of parameters that were taken counts from now on, or nothing
  // does.
  void keep();
  void forget();

  // Over all replicas.
  CompressionTally tally() const;
  // By worker; none where nothing is compressed.
  std::vector<GradientCompressor*> compressors();

 private:
  struct Seat {
    Communicator world;
    GradientBuffers gradients;
    std::optional<GradientCompressor> compressor;
  };

  NamedExchangeOptions options_;
  std::vector<std::string> names_;
  std::vector<bool> is_taken_;
  std::vector<Seat> seats_;
};

}  // namespace tutti::detail
