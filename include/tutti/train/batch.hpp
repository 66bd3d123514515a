// Rows of data as a batch: DataParallel and its like deal them out to replicas.
//
//   const DataSplits data = open_data(run);
//   const DataRows rows = data.train->rows(numbers);
//   model.step(rows, [&](GraphModule& module, const DataRows& mine) {
//     return run.loss.compute(module.forward(graph_inputs(run, mine)).front(), mine.target);
//   });
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>
#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/nn/rows.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

// Split and standardised as the run says.
DataSplits open_data(const Run& run);

// For a Loader of the rows to train with: batches as the run says, from the step after so many. All of their rows are
// one shard's, unless `shards` is set.
LoaderOptions loader_options(const Run& run, const Dataset& rows, std::int64_t steps_taken);

std::int64_t row_count(const DataRows& batch);
DataRows slice_rows(const DataRows& batch, const Rows& rows);

// A batch of a Loader, of which this process has the rows of some shards: DataParallel asks for them shard by shard.
struct ShardedBatch {
  std::shared_ptr<const DataBatch> loaded;
};
struct ShardRows {
  DataRows rows;
  int shard = 0;
};
std::int64_t row_count(const ShardedBatch& batch);
ShardRows slice_rows(const ShardedBatch& batch, const Rows& rows);

// In the order of the graph's inputs.
std::vector<torch::Tensor> graph_inputs(const Run& run, const DataRows& rows);

}  // namespace tutti
