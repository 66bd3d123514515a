// `tutti predict runs/first`: what a run has learnt to say of rows.
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/data/data_options.hpp>
#include <tutti/data/npy.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/evaluation.hpp>

#include "cli/command_line.hpp"
#include "cli/split_rows.hpp"
#include "cli/trained_run.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

// As RFC 4180 has it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

// A line for each row: of classes the likeliest and how likely it is, and what it should be where that is known; of
// numbers these.
class CsvTable {
 public:
  CsvTable(const Run& run, bool has_target) : description_(run.data.opened_by.description), has_target_(has_target) {
    const Shape& output = run.graph.value(run.graph.outputs().front().value).shape;
    if (output.size() != 1)
      throw UsageError(
          fmt::format("a row has {} as its output, which a table does not hold: write to a .npy file with --to",
                      to_string(output)));
    are_classes_ = description_.classes > 1;
    text_ = are_classes_ ? "row,class,probability" : "row";
    if (!are_classes_) {
      for (std::int64_t i = 0; i < output.front(); ++i)
        text_ += output.front() == 1 ? ",value" : fmt::format(",value_{}", i);
    }
    text_ += has_target_ ? ",target\n" : "\n";
  }

  void add(const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor shown = are_classes_ ? torch::softmax(output, 1) : output;
    for (std::int64_t i = 0; i < shown.size(0); ++i, ++row_) {
      text_ += std::to_string(row_);
      if (are_classes_) {
        const std::int64_t best = shown[i].argmax().item<std::int64_t>();
        text_ += fmt::format(",{},{:.6g}", class_name(best), shown[i][best].item<double>());
        if (has_target_) text_ += "," + class_name(target[i].item<std::int64_t>());
      } else {
        for (std::int64_t k = 0; k < shown.size(1); ++k) text_ += fmt::format(",{:.9g}", shown[i][k].item<double>());
        if (has_target_) text_ += fmt::format(",{:.9g}", target[i].flatten()[0].item<double>());
      }
      text_ += '\n';
    }
  }

  const std::string& text() const { return text_; }

 private:
  std::string class_name(std::int64_t number) const {
    const auto i = static_cast<std::size_t>(number);
    return i < description_.class_names.size() ? csv_field(description_.class_names[i]) : std::to_string(number);
  }

  const DataDescription& description_;
  bool has_target_;
  bool are_classes_ = false;
  std::int64_t row_ = 0;
  std::string text_;
};

std::string npy_text(const std::vector<torch::Tensor>& outputs) {
  const torch::Tensor all = torch::cat(outputs).contiguous();
  const bool is_whole = all.scalar_type() == torch::kInt64;
  const torch::Tensor values = is_whole ? all : all.to(torch::kFloat32);
  std::ostringstream stream;
  write_npy(stream, {.type = is_whole ? NpyType::int64 : NpyType::float32,
                     .shape = values.sizes().vec(),
                     .bytes = {static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}});
  return stream.str();
}

}  // namespace

void run_predict(Arguments arguments) {
  TrainedRun trained("predict");
  std::string split = "test";
  std::string input;
  std::string to;
  CommandLine line("Computes what a run has learnt to say of rows: of classes the likeliest, of numbers these.",
                   "tutti predict");
  trained.add_to(line);
  const CommandOption split_option =
      line.option("--split", split, "rows of the run's own data: train, validation or test");
  line.option("--input", input, "rows of this file: .npy, or of the kind that the run's data is")
      .excludes(split_option);
  line.option("--to", to,
              "write to this file: .csv, or .npy for all outputs as they are; without it, a table is printed");
  if (!line.parse(arguments)) return;
  const std::string extension = std::filesystem::path(to).extension().string();
  if (!to.empty() && extension != ".csv" && extension != ".npy")
    throw UsageError(fmt::format("--to: expected a file that ends in .csv or .npy, found {}", to));

  trained.load();
  set_up_blas();
  const Run& run = trained.run();
  const std::shared_ptr<const Dataset> rows = input.empty()
                                                  ? rows_of_split(open_data(run), split)
                                                  : open_inputs(run.data.opened_by, run.data.options, run.seed, input);
  std::optional<CsvTable> table;
  if (extension != ".npy") table.emplace(run, input.empty());
  std::vector<torch::Tensor> outputs;
  Evaluator(run, {}).for_each_output(
      trained.module(), *rows, [&](const std::vector<torch::Tensor>& computed, const DataRows& batch) {
        table ? table->add(computed.front(), batch.target) : outputs.push_back(computed.front());
      });
  const std::string text = table ? table->text() : npy_text(outputs);
  if (to.empty()) {
    fmt::print("{}", text);
  } else {
    write_file(to, text);
    fmt::print("{}: {} rows, with {}\n", to, rows->size(), trained.file().string());
  }
}

}  // namespace tutti::cli
