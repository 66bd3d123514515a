// Batches of a dataset, in the order of a sampler, made ahead on a thread of their own while a step is computed.
//
//   Loader loader(data.train, {.sampler = {.rows = data.train->size(), .batch_size = 128, .seed = 7}});
//   for (std::int64_t step = 0; step < steps; ++step) {
//     DataBatch batch = loader.next();
//     const DataRows rows = batch.rows_of_shard(0);
//   }
//
// The batches are the same whatever the number of threads and batches ahead; start_at() goes to any step.
//
// A batch is dealt out to shards: row i belongs to shard i mod shards.of. Who computes some of them loads the rows of
// these alone, one shard behind the other:
//
//   Loader mine(data.train, {.sampler = sampler, .shards = {.first = 2, .count = 2, .of = 8}});
//   batch.rows_of_shard(3);                              // a view, or a copy where images are unpacked
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/prefetch.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

struct LoadedShards {
  int first = 0;
  int count = 1;
  int of = 1;
};

struct LoaderOptions {
  SamplerOptions sampler = {};
  std::optional<AugmentOptions> augment = std::nullopt;  // of inputs that are images, with the sampler's seed
  std::size_t ahead = 4;                                 // batches that lie ready at most
  std::int64_t first_step = 0;
  LoadedShards shards = {};
};

struct DataBatch {
  DataRows rows = {};  // those of the shards that were loaded; images may still be packed (unpack_rows)
  std::vector<std::int64_t> numbers = {};  // which rows these are
  std::int64_t rows_of_all = 0;            // in this batch, those of other shards included
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  LoadedShards shards = {};

  // Of a shard that was loaded; a UsageError otherwise.
  DataRows rows_of_shard(int shard) const;
};

struct AugmentedRows {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::span<const std::int64_t> numbers = {};
};

// Inputs that are images, changed a little (data/augment.hpp); others as they are.
DataRows augment_rows(DataRows rows, const AugmentOptions& options, const AugmentedRows& which);

// The batch of any step; `options.sampler` is the sampler's own.
DataBatch load_batch(const Dataset& dataset, Sampler& sampler, const LoaderOptions& options, std::int64_t step);

// One thread at a time. What a dataset throws reaches the caller of next() in place of the batch.
class Loader {
 public:
  // A UsageError where the sampler has other rows than the dataset.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  DataBatch next() { return batches_.next(); }
  void start_at(std::int64_t step) { batches_.start_at(step); }

 private:
  std::int64_t steps_per_epoch_;
  Prefetch<DataBatch> batches_;
};

}  // namespace tutti
