// Arrays that numpy saved: {"source": "npy", "inputs": "x.npy", "target": "y.npy"}, with "test_inputs" and
// "test_target". Their first dimension counts the rows. "inputs" and "target" may be lists, of as many files each.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <tutti/data/npy.hpp>

#include "labels.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

struct NpyPair {
  std::filesystem::path inputs;
  std::filesystem::path target;
};

// Bytes of inputs are shades of grey, those of a target classes.
enum class NpyRole { inputs, target };

bool stands_for_something(NpyType type, NpyRole role) {
  return type == NpyType::int32 || type == NpyType::int64 || (type == NpyType::uint8 && role == NpyRole::target);
}

// What the rows of a file are. One number to a row is a row of one, unless it stands for something.
ValueSpec npy_spec(const std::filesystem::path& path, const NpyArray& array, NpyRole role) {
  if (array.shape.empty()) throw UsageError(fmt::format("{}: expected rows, found one number", path.string()));
  if (array.shape.front() == 0) throw UsageError(fmt::format("{}: there are no rows", path.string()));
  ValueSpec spec{.shape = {array.shape.begin() + 1, array.shape.end()}};
  if (stands_for_something(array.type, role)) {
    spec.type = ValueType::int64;
  } else if (spec.shape.empty()) {
    spec.shape = {1};
  }
  return spec;
}

torch::ScalarType scalar_type_of(NpyType type) {
  switch (type) {
    case NpyType::float32: return torch::kFloat32;
    case NpyType::float64: return torch::kFloat64;
    case NpyType::int32: return torch::kInt32;
    case NpyType::int64: return torch::kInt64;
    case NpyType::uint8: return torch::kUInt8;
    case NpyType::boolean: return torch::kBool;
  }
  return torch::kFloat32;
}

void refuse_unless_finite(const std::filesystem::path& path, const torch::Tensor& values) {
  const auto* first = values.data_ptr<float>();
  const auto* last = first + values.numel();
  const auto* wrong = std::find_if(first, last, [](float value) { return !std::isfinite(value); });
  if (wrong == last) return;
  const std::int64_t row = (wrong - first) / std::max<std::int64_t>(values.numel() / values.size(0), 1);
  throw UsageError(
      fmt::format("{}: row {}: expected numbers that float32 holds, found {}", path.string(), row, *wrong));
}

// Shades of grey stay bytes: TensorDataset knows what they are.
torch::Tensor read_npy_tensor(const std::filesystem::path& path, NpyRole role) {
  auto array = std::make_shared<NpyArray>(read_npy(path));
  const ValueSpec spec = npy_spec(path, *array, role);
  torch::Tensor values = torch::from_blob(
      array->bytes.data(), array->shape, [array](void*) {}, scalar_type_of(array->type));
  if (spec.type == ValueType::int64) {
    values = values.to(torch::kInt64);
  } else if (array->type != NpyType::uint8) {
    values = values.to(torch::kFloat32);
    refuse_unless_finite(path, values);
  }
  return values.reshape(with_rows(array->shape.front(), spec.shape));
}

void expect_rows_of(const NpyPair& files, std::int64_t inputs, std::int64_t target) {
  if (inputs == target) return;
  throw UsageError(fmt::format("{}: expected {} rows, as many as {} has, found {}", files.target.string(), inputs,
                               files.inputs.string(), target));
}

// Whole numbers of a target are classes.
std::shared_ptr<const Dataset> npy_rows(const NpyPair& files, const torch::Tensor& target, std::int64_t classes) {
  if (target.scalar_type() == torch::kInt64) refuse_unless_classes(files.target, target, classes);
  const torch::Tensor inputs = read_npy_tensor(files.inputs, NpyRole::inputs);
  expect_rows_of(files, inputs.size(0), target.size(0));
  return std::make_shared<TensorDataset>(std::vector{inputs}, target);
}

// Files to train with, whose headers are looked at. Inputs may be large, and their headers say what they are; of
// classes the largest has to be known.
struct NpyTraining {
  std::vector<NpyPair> files;
  std::vector<torch::Tensor> targets;  // of each
};

void expect_alike(const std::filesystem::path& path, const ValueSpec& expected, const ValueSpec& found) {
  if (found == expected) return;
  throw UsageError(
      fmt::format("{}: expected rows of {}, found {}", path.string(), to_string(expected), to_string(found)));
}

ValueSpec spec_of_target(const torch::Tensor& target) {
  return {.shape = target.sizes().slice(1).vec(),
          .type = target.scalar_type() == torch::kInt64 ? ValueType::int64 : ValueType::float32};
}

DataSource resolve_npy(const Options& options) {
  const std::vector<std::filesystem::path> inputs = options.at("inputs").existing_files();
  const std::vector<std::filesystem::path> targets = options.at("target").existing_files();
  if (inputs.size() != targets.size())
    throw options.at("target").error(
        fmt::format("expected {} files, as many as of inputs, found {}", inputs.size(), targets.size()));
  std::optional<NpyPair> test;
  const std::optional<JsonValue> test_inputs = options.find("test_inputs");
  const std::optional<JsonValue> test_target = options.find("test_target");
  if (test_inputs.has_value() != test_target.has_value())
    throw options.error("expected both test_inputs and test_target, or none of them");
  if (test_inputs) test = {.inputs = test_inputs->existing_file(), .target = test_target->existing_file()};

  NpyTraining train;
  ValueSpec input;
  ValueSpec target;
  std::int64_t most_classes = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const NpyPair files{.inputs = inputs[i], .target = targets[i]};
    const NpyArray header = read_npy_header(files.inputs);
    const ValueSpec its_input = npy_spec(files.inputs, header, NpyRole::inputs);
    const torch::Tensor its_target = read_npy_tensor(files.target, NpyRole::target);
    if (i == 0) {
      input = its_input;
      target = spec_of_target(its_target);
    }
    expect_alike(files.inputs, input, its_input);
    expect_alike(files.target, target, spec_of_target(its_target));
    expect_rows_of(files, header.shape.front(), its_target.size(0));
    if (target.type == ValueType::int64) most_classes = std::max(most_classes, count_classes(files.target, its_target));
    train.files.push_back(files);
    train.targets.push_back(its_target);
  }
  std::int64_t classes = 0;
  if (target.type == ValueType::int64) {
    classes = options.integer("classes", {.min = 1, .max = kMostSize}, 0);
    if (classes == 0) classes = most_classes;
  }
  if (test) {
    const auto spec = [](const std::filesystem::path& path, NpyRole role) {
      return npy_spec(path, read_npy_header(path), role);
    };
    expect_alike(test->inputs, input, spec(test->inputs, NpyRole::inputs));
    expect_alike(test->target, target, spec(test->target, NpyRole::target));
  }
  return {.description = {.inputs = {{"input", input}}, .target = target, .classes = classes},
          .open =
              [train, test, classes] {
                std::vector<std::shared_ptr<const Dataset>> parts;
                for (std::size_t i = 0; i < train.files.size(); ++i)
                  parts.push_back(npy_rows(train.files[i], train.targets[i], classes));
                DataSplits splits{.train = rows_of_files(std::move(parts))};
                if (test) splits.test = npy_rows(*test, read_npy_tensor(test->target, NpyRole::target), classes);
                return splits;
              },
          .has_test = test.has_value(),
          .files = inputs};
}

}  // namespace

std::shared_ptr<const Dataset> read_npy_inputs(const std::filesystem::path& path, const ValueSpec& expected) {
  torch::Tensor inputs = read_npy_tensor(path, NpyRole::inputs);
  const Shape row = inputs.sizes().slice(1).vec();
  const bool lacks_channel = expected.shape.size() == row.size() + 1 && expected.shape.front() == 1;
  return rows_without_target(lacks_channel ? inputs.unsqueeze(1) : inputs);
}

void add_npy(DataSourceRegistry& registry) { registry.add({.name = "npy", .resolve = resolve_npy}); }

}  // namespace tutti::detail
