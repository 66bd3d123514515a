// What can be asked of every source of data, and its rows opened so.
//
//   "data": {"source": "csv", "file": "iris.csv", "label": "species", "batch_size": 16,
//            "split": {"test": 0.2}, "standardise": true}
//
//   const DataSource source = type.resolve(options);
//   const DataOptions wishes = read_data_options(options, source);
//   const DataSplits data = open_data(source, wishes, seed);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <tutti/base/options.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/split.hpp>

namespace tutti {

struct DataOptions {
  RowSplitOptions split = {};  // what the training rows give away
  bool standardise = false;
  std::optional<AugmentOptions> augment = std::nullopt;  // of training rows, by the Loader
  bool shuffle = true;                                   // and these two are the Sampler's
  bool drop_last = false;
};

// "split", "standardise", "augment", "shuffle" and "drop_last" of a run file's data. A UsageError at the place of what
// makes no sense for the source.
DataOptions read_data_options(const Options& options, const DataSource& source);

// The source's rows, split and standardised. A UsageError where a part has no rows, or they are not as the source
// describes them.
DataSplits open_data(const DataSource& source, const DataOptions& options, std::uint64_t seed);

// Rows of a file that has no target, to predict it: a .npy file, or one of the kind that the source reads. They are
// standardised as the training rows are; what stands for their target has no elements. A UsageError where they are not
// as the source describes its inputs.
std::shared_ptr<const Dataset> open_inputs(const DataSource& source, const DataOptions& options, std::uint64_t seed,
                                           const std::filesystem::path& file);

}  // namespace tutti
