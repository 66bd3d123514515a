#include <tutti/data/loader.hpp>

#include <span>
#include <utility>

#include <fmt/format.h>

namespace tutti {
namespace {

// What makes the batches: used by the thread of the loader alone.
class BatchMaker {
 public:
  BatchMaker(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)), options_(options), sampler_(options.sampler) {
    if (!dataset_ || dataset_->size() != options.sampler.rows) {
      throw UsageError(fmt::format("expected a sampler of the dataset's {} rows, found one of {}",
                                   dataset_ ? dataset_->size() : 0, options.sampler.rows));
    }
    const LoadedShards& its = options.shards;
    if (its.of < 1 || its.first < 0 || its.count < 1 || its.count > its.of - its.first)
      throw UsageError(fmt::format("there are no {} shards from {} on among {}", its.count, its.first, its.of));
  }

  DataBatch make(std::int64_t step) { return load_batch(*dataset_, sampler_, options_, step); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  Sampler sampler_;
};

}  // namespace

DataRows augment_rows(DataRows rows, const AugmentOptions& options, const AugmentedRows& which) {
  for (torch::Tensor& input : rows.inputs) {
    if (input.dim() != 4 || input.scalar_type() != torch::kFloat32) continue;
    const torch::Tensor from = input.contiguous();
    torch::Tensor to = torch::empty_like(from);
    const auto count = static_cast<std::size_t>(from.numel());
    augment_images(std::span(from.data_ptr<float>(), count), std::span(to.data_ptr<float>(), count),
                   {.options = options,
                    .size = {.channels = from.size(1), .height = from.size(2), .width = from.size(3)},
                    .seed = which.seed,
                    .epoch = which.epoch},
                   which.numbers);
    input = std::move(to);
  }
  return rows;
}

DataBatch load_batch(const Dataset& dataset, Sampler& sampler, const LoaderOptions& options, std::int64_t step) {
  SampledRows sampled = sampler.rows_of(step);
  DataBatch batch{.rows_of_all = static_cast<std::int64_t>(sampled.numbers.size()),
                  .step = step,
                  .epoch = sampled.epoch,
                  .shards = options.shards};
  for (int shard = options.shards.first; shard < options.shards.first + options.shards.count; ++shard) {
    for (auto i = static_cast<std::size_t>(shard); i < sampled.numbers.size();
         i += static_cast<std::size_t>(options.shards.of))
      batch.numbers.push_back(sampled.numbers[i]);
  }
  batch.rows = options.augment ? dataset.rows(batch.numbers) : dataset.packed_rows(batch.numbers);
  if (options.augment)
    batch.rows = augment_rows(std::move(batch.rows), *options.augment,
                              {.seed = sampler.options().seed, .epoch = batch.epoch, .numbers = batch.numbers});
  return batch;
}

DataRows DataBatch::rows_of_shard(int shard) const {
  if (shard < shards.first || shard >= shards.first + shards.count)
    throw UsageError(fmt::format("shard {} was not loaded, but {} from {} on", shard, shards.count, shards.first));
  const auto size_of = [&](int one) { return (rows_of_all - one + shards.of - 1) / shards.of; };
  std::int64_t first = 0;
  for (int before = shards.first; before < shard; ++before) first += size_of(before);
  DataRows mine;
  for (const torch::Tensor& input : rows.inputs) mine.inputs.push_back(input.narrow(0, first, size_of(shard)));
  mine.target = rows.target.narrow(0, first, size_of(shard));
  return unpack_rows(std::move(mine));
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : steps_per_epoch_(Sampler(options.sampler).steps_per_epoch()),
      batches_([maker = std::make_shared<BatchMaker>(std::move(dataset), options)](
                   std::int64_t step) { return maker->make(step); },
               {.ahead = options.ahead, .first = options.first_step}) {}

}  // namespace tutti
