// Rows to learn from: where they come from, what they are, and how to get at them.
//
//   DataSource source = type.resolve(options);      // reads the options, and of files what the description needs
//   source.description.inputs;                      // "image": [1, 28, 28]
//   DataSplits data = source.open();                // or open_data(), with what every source can do (data_options.hpp)
//   DataRows rows = data.train->rows(numbers);      // in this order
//
// A source of one's own:
//
//   registry.data_sources.add({.name = "spiral", .resolve = [](const Options& options) {
//     const std::int64_t rows = options.integer("rows", {.min = 1}, 1000);
//     const ValueSpec kind{.type = ValueType::int64};
//     return DataSource{.description = {.inputs = {{"point", {.shape = {2}}}}, .target = kind, .classes = 2},
//                       .open = [rows] { return DataSplits{.train = std::make_shared<Spiral>(rows), ...}; }};
//   }});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <tutti/base/named_types.hpp>
#include <tutti/base/options.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {

struct DataDescription {
  std::vector<std::pair<std::string, ValueSpec>> inputs;
  ValueSpec target;
  std::int64_t classes = 0;                   // of a target that is a class: how many there are
  std::vector<std::string> class_names = {};  // and what they are called, where that is known
};

// Tensors have the rows as their first dimension.
struct DataRows {
  std::vector<torch::Tensor> inputs;  // in the order of the description
  torch::Tensor target;
};

// Threads: any number may read at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  // Row numbers from 0 to size()-1.
  virtual DataRows rows(std::span<const std::int64_t> numbers) const = 0;
  // The same, but inputs that are kept as bytes may still be: unpack_rows() makes numbers of them, on the thread that
  // computes with them. Moving a quarter of the memory between cores takes a quarter of the time.
  virtual DataRows packed_rows(std::span<const std::int64_t> numbers) const { return rows(numbers); }
  // By row: which of several files it comes from, by their order. Empty where there is one.
  virtual std::vector<std::int64_t> file_of_row() const { return {}; }
};

// Inputs of bytes become numbers in 0..1; all others stay as they are.
DataRows unpack_rows(DataRows packed);

// Test and validation may be missing.
struct DataSplits {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test = nullptr;
  std::shared_ptr<const Dataset> validation = nullptr;
};

struct DataSource {
  DataDescription description;
  std::function<DataSplits()> open;
  bool has_test = true;  // rows to test with are its own; otherwise open_data() takes some of the others
  bool has_validation =
      false;  // and rows for validation; otherwise a run file's "split" may ask for some of the others
  // That the rows to train with come from, in the order of Dataset::file_of_row(); may be empty where there is one.
  std::vector<std::filesystem::path> files = {};
  bool is_in_order = false;  // rows that follow one another belong together: those to test with are the last ones
  // Rows without a target, out of a file of the kind that the source reads: for predictions. Optional; open_inputs()
  // reads .npy files for all of them.
  std::function<std::shared_ptr<const Dataset>(const std::filesystem::path& file)> read_inputs = {};
};

struct DataSourceType {
  std::string name;
  std::function<DataSource(const Options& options)> resolve;
};

class DataSourceRegistry : public NamedTypes<DataSourceType> {
 public:
  // With those that tutti has: csv, fashion_mnist, idx, mnist, npy, text.
  DataSourceRegistry();
};

// Rows that lie in memory. Inputs of bytes (torch::kUInt8), as images come in, are kept so, in a quarter of the memory,
// and handed out as numbers in 0..1.
class TensorDataset : public Dataset {
 public:
  // A UsageError where they do not have as many rows.
  TensorDataset(std::vector<torch::Tensor> inputs, torch::Tensor target);

  std::int64_t size() const override { return target_.size(0); }
  DataRows rows(std::span<const std::int64_t> numbers) const override;
  DataRows packed_rows(std::span<const std::int64_t> numbers) const override;

 private:
  std::vector<torch::Tensor> inputs_;
  torch::Tensor target_;
};

}  // namespace tutti
