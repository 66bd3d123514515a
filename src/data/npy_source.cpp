// Arrays that numpy saved: {"source": "npy", "inputs": "x.npy", "target": "y.npy"}, with "test_inputs" and
// "test_target". Their first dimension counts the rows.
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

DataSource resolve_npy(const Options& options) {
  const NpyPair train{.inputs = options.at("inputs").existing_file(), .target = options.at("target").existing_file()};
  std::optional<NpyPair> test;
  const std::optional<JsonValue> test_inputs = options.find("test_inputs");
  const std::optional<JsonValue> test_target = options.find("test_target");
  if (test_inputs.has_value() != test_target.has_value())
    throw options.error("expected both test_inputs and test_target, or none of them");
  if (test_inputs) test = {.inputs = test_inputs->existing_file(), .target = test_target->existing_file()};

  // Inputs may be large, and their headers say what they are. Of classes the largest has to be known.
  const NpyArray inputs = read_npy_header(train.inputs);
  const ValueSpec input = npy_spec(train.inputs, inputs, NpyRole::inputs);
  const torch::Tensor target = read_npy_tensor(train.target, NpyRole::target);
  const ValueSpec target_spec{.shape = target.sizes().slice(1).vec(),
                              .type = target.scalar_type() == torch::kInt64 ? ValueType::int64 : ValueType::float32};
  expect_rows_of(train, inputs.shape.front(), target.size(0));
  std::int64_t classes = 0;
  if (target_spec.type == ValueType::int64) {
    classes = options.integer("classes", {.min = 1, .max = kMostSize}, 0);
    if (classes == 0) classes = count_classes(train.target, target);
  }
  if (test) {
    const auto expect_alike = [](const std::filesystem::path& path, const ValueSpec& expected, NpyRole role) {
      const ValueSpec found = npy_spec(path, read_npy_header(path), role);
      if (found != expected) {
        throw UsageError(
            fmt::format("{}: expected rows of {}, found {}", path.string(), to_string(expected), to_string(found)));
      }
    };
    expect_alike(test->inputs, input, NpyRole::inputs);
    expect_alike(test->target, target_spec, NpyRole::target);
  }
  return {.description = {.inputs = {{"input", input}}, .target = target_spec, .classes = classes},
          .open =
              [train, test, target, classes] {
                DataSplits splits{.train = npy_rows(train, target, classes)};
                if (test) splits.test = npy_rows(*test, read_npy_tensor(test->target, NpyRole::target), classes);
                return splits;
              },
          .has_test = test.has_value()};
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
