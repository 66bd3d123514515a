#include <tutti/train/predictions.hpp>

#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/data/npy.hpp>
#include <tutti/train/evaluation.hpp>

namespace tutti {
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
          fmt::format("a row has {} as its output, which a table does not hold; a .npy file does", to_string(output)));
    are_classes_ = description_.classes > 1;
    text_ = are_classes_ ? "row,class,probability" : "row";
    if (!are_classes_) {
      for (std::int64_t i = 0; i < output.front(); ++i)
        text_ += output.front() == 1 ? ",value" : fmt::format(",value_{}", i);
    }
    const std::int64_t targets = are_classes_ ? 1 : element_count(description_.target.shape).value_or(1);
    for (std::int64_t i = 0; has_target_ && i < targets; ++i)
      text_ += targets == 1 ? ",target" : fmt::format(",target_{}", i);
    text_ += '\n';
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
        const torch::Tensor expected = target[i].flatten();
        for (std::int64_t k = 0; has_target_ && k < expected.numel(); ++k)
          text_ += fmt::format(",{:.9g}", expected[k].item<double>());
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

}  // namespace

std::string prediction_table(const std::shared_ptr<const Run>& run, const std::shared_ptr<GraphModule>& net,
                             const Dataset& rows, const PredictionOptions& options) {
  CsvTable table(*run, options.has_target);
  Evaluator(run, {}).for_each_output(net, rows, [&](const std::vector<torch::Tensor>& computed, const DataRows& batch) {
    table.add(computed.front(), batch.target);
  });
  return table.text();
}

std::string prediction_npy(const std::shared_ptr<const Run>& run, const std::shared_ptr<GraphModule>& net,
                           const Dataset& rows) {
  std::vector<torch::Tensor> outputs;
  Evaluator(run, {}).for_each_output(net, rows, [&](const std::vector<torch::Tensor>& computed, const DataRows&) {
    outputs.push_back(computed.front());
  });
  const torch::Tensor all = torch::cat(outputs).contiguous();
  const bool is_whole = all.scalar_type() == torch::kInt64;
  const torch::Tensor values = is_whole ? all : all.to(torch::kFloat32);
  std::ostringstream stream;
  write_npy(stream, {.type = is_whole ? NpyType::int64 : NpyType::float32,
                     .shape = values.sizes().vec(),
                     .bytes = {static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}});
  return stream.str();
}

}  // namespace tutti
