#include <tutti/train/batch.hpp>

#include <tutti/data/data_options.hpp>

namespace tutti {

DataSplits open_data(const Run& run) { return open_data(run.data.opened_by, run.data.options, run.seed); }

LoaderOptions loader_options(const Run& run, const Dataset& rows, std::int64_t steps_taken) {
  return {.sampler = {.rows = rows.size(),
                      .batch_size = run.data.batch_size,
                      .seed = run.seed,
                      .shuffle = run.data.options.shuffle,
                      .drop_last = run.data.options.drop_last},
          .augment = run.data.options.augment,
          .first_step = steps_taken};
}

std::int64_t row_count(const DataRows& batch) {
  std::int64_t count = row_count(batch.target);
  for (const torch::Tensor& input : batch.inputs) count = same_row_count(count, row_count(input));
  return count;
}

DataRows slice_rows(const DataRows& batch, const Rows& rows) {
  DataRows result;
  for (const torch::Tensor& input : batch.inputs) result.inputs.push_back(rows.of(input));
  result.target = rows.of(batch.target);
  return result;
}

std::int64_t row_count(const ShardedBatch& batch) { return batch.loaded->rows_of_all; }

// Rows of one of several shards: their first is the shard's number.
ShardRows slice_rows(const ShardedBatch& batch, const Rows& rows) {
  const int shard = static_cast<int>(rows.first);
  return {batch.loaded->rows_of_shard(shard), shard};
}

std::vector<torch::Tensor> graph_inputs(const Run& run, const DataRows& rows) {
  std::vector<torch::Tensor> inputs;
  for (const std::size_t input : run.data.input_order) inputs.push_back(rows.inputs[input]);
  return inputs;
}

}  // namespace tutti
