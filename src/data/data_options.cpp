#include <tutti/data/data_options.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <tutti/data/standardise.hpp>
#include <tutti/data/subset.hpp>

#include "sources.hpp"

namespace tutti {
namespace {

bool is_image(const ValueSpec& spec) { return spec.type == ValueType::float32 && spec.shape.size() == 3; }

RowSplitOptions read_split(const Options& options, const DataSource& source) {
  constexpr double kTestShare = 0.2;
  constexpr NumberRange kShare{.min = 0, .max = 1, .max_excluded = true};
  RowSplitOptions split{.test = source.has_test ? 0 : kTestShare, .shuffle = !source.is_in_order};
  const std::optional<JsonValue> value = options.find("split");
  if (!value) return split;
  if (!value->is_object()) throw value->expected(R"(a split, as in {"test": 0.2, "validation": 0.1})");
  const Options its(*value);
  split.test = its.number("test", kShare, split.test);
  split.validation = its.number("validation", kShare, split.validation);
  split.shuffle = its.boolean("shuffle", split.shuffle);
  its.refuse_other_keys({});
  if (source.has_test && split.test > 0)
    throw value->at("test").error(fmt::format("the source has rows to test with of its own{}",
                                              source.has_validation ? "" : "; only validation can be split off"));
  if (source.has_validation && split.validation > 0)
    throw value->at("validation").error("the source has rows for validation of its own");
  if (split.test + split.validation >= 1) throw value->error("expected shares that leave rows to train with");
  return split;
}

AugmentOptions read_augment(const JsonValue& value, const DataDescription& description) {
  if (!value.is_object()) throw value.expected(R"(an augmentation, as in {"flip": true, "shift": 2})");
  std::int64_t most = 0;
  for (const auto& [name, spec] : description.inputs) {
    if (is_image(spec)) most = std::max(most, std::min(spec.shape[1], spec.shape[2]) - 1);
  }
  if (std::ranges::none_of(description.inputs, [](const auto& input) { return is_image(input.second); }))
    throw value.error("the data has no images: rows of float32 with channels, lines and columns");
  const Options options(value);
  AugmentOptions augment;
  augment.flip = options.boolean("flip", false);
  augment.shift = options.integer("shift", {.min = 0, .max = most}, 0);
  options.refuse_other_keys({});
  return augment;
}

// A row tells of all: a source hands out tensors.
void refuse_unless_described(const DataDescription& description, const std::string& part, const Dataset& rows,
                             bool has_target = true) {
  if (rows.size() == 0) throw UsageError(fmt::format("the data has no rows for {}", part));
  constexpr std::array<std::int64_t, 1> kFirst{0};
  const DataRows row = rows.rows(kFirst);
  const auto expect = [&](const std::string& name, const ValueSpec& spec, const torch::Tensor& found) {
    const bool is_int = found.defined() && found.scalar_type() == torch::kInt64;
    const bool is_type = is_int || (found.defined() && found.scalar_type() == torch::kFloat32);
    if (!is_type)
      throw UsageError(fmt::format("{}, {}: expected {}, found a tensor of another type", part, name, to_string(spec)));
    if (found.dim() == 0) throw UsageError(fmt::format("{}, {}: expected rows, found one number", part, name));
    const ValueSpec its{.shape = found.sizes().slice(1).vec(), .type = is_int ? ValueType::int64 : ValueType::float32};
    if (its != spec)
      throw UsageError(
          fmt::format("{}, {}: expected rows of {}, found {}", part, name, to_string(spec), to_string(its)));
  };
  if (row.inputs.size() != description.inputs.size())
    throw UsageError(
        fmt::format("{}: expected {} inputs, found {}", part, description.inputs.size(), row.inputs.size()));
  for (std::size_t i = 0; i < row.inputs.size(); ++i)
    expect(description.inputs[i].first, description.inputs[i].second, row.inputs[i]);
  if (has_target) expect("target", description.target, row.target);
}

// Of several files each is split for itself, so that none ends up without rows to train with.
RowSplit split_files(const Dataset& all, const RowSplitOptions& options, std::uint64_t seed) {
  const std::vector<std::int64_t> file_of_row = all.file_of_row();
  if (file_of_row.empty()) return split_rows(all.size(), options, seed);
  RowSplit whole;
  for (std::size_t first = 0, last = 0; first < file_of_row.size(); first = last) {
    while (last < file_of_row.size() && file_of_row[last] == file_of_row[first]) ++last;
    const auto rows = static_cast<std::int64_t>(last - first);
    RowSplit its;
    try {
      its = split_rows(rows, rows == 1 ? RowSplitOptions{} : options, seed + first);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("file {}, from 0 on: {}", file_of_row[first], error.what()));
    }
    const auto append = [&](std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
      for (const std::int64_t number : from) to.push_back(static_cast<std::int64_t>(first) + number);
    };
    append(whole.train, its.train);
    append(whole.validation, its.validation);
    append(whole.test, its.test);
  }
  return whole;
}

}  // namespace

DataOptions read_data_options(const Options& options, const DataSource& source) {
  DataOptions result;
  result.split = read_split(options, source);
  result.standardise = options.boolean("standardise", false);
  const auto is_number = [](const auto& input) { return input.second.type == ValueType::float32; };
  if (result.standardise && std::ranges::none_of(source.description.inputs, is_number))
    throw options.at("standardise").error("the data has no inputs of float32");
  if (const std::optional<JsonValue> value = options.find("augment"))
    result.augment = read_augment(*value, source.description);
  result.shuffle = options.boolean("shuffle", true);
  result.drop_last = options.boolean("drop_last", false);
  return result;
}

DataSplits open_data(const DataSource& source, const DataOptions& options, std::uint64_t seed) {
  DataSplits data = source.open();
  if (!data.train) throw UsageError("the data has no rows to train with");
  if (source.has_validation && !data.validation)
    throw UsageError("the source was to have rows for validation of its own, and has none");
  const auto parts = [&] {
    return std::array{std::pair{"training", &data.train}, std::pair{"testing", &data.test},
                      std::pair{"validation", &data.validation}};
  };
  for (const auto& [part, rows] : parts()) {
    if (*rows) refuse_unless_described(source.description, part, **rows);
  }
  const RowSplitOptions& split = options.split;
  if ((split.test > 0 && data.test) || (split.validation > 0 && data.validation))
    throw UsageError("the source has rows of its own for what is to be split off");
  if (split.test > 0 || split.validation > 0) {
    const std::shared_ptr<const Dataset> all = data.train;
    RowSplit numbers = split_files(*all, split, seed);
    data.train = std::make_shared<SubsetDataset>(all, std::move(numbers.train));
    if (split.test > 0) data.test = std::make_shared<SubsetDataset>(all, std::move(numbers.test));
    if (split.validation > 0) data.validation = std::make_shared<SubsetDataset>(all, std::move(numbers.validation));
    for (const auto& [part, rows] : parts()) {
      if (*rows && (*rows)->size() == 0)
        throw UsageError(fmt::format("the data has no rows for {}: each file has one row", part));
    }
  }
  if (options.standardise) {
    const std::vector<InputMoments> moments = moments_of(*data.train, source.description);
    for (const auto& [part, rows] : parts()) {
      if (*rows) *rows = std::make_shared<StandardisedDataset>(*rows, source.description, moments);
    }
  }
  return data;
}

std::shared_ptr<const Dataset> open_inputs(const DataSource& source, const DataOptions& options, std::uint64_t seed,
                                           const std::filesystem::path& file) {
  std::shared_ptr<const Dataset> rows;
  if (file.extension() == ".npy") {
    if (source.description.inputs.size() != 1)
      throw UsageError(
          fmt::format("{}: a file has one input, and the data {}", file.string(), source.description.inputs.size()));
    rows = detail::read_npy_inputs(file, source.description.inputs.front().second);
  } else if (source.read_inputs) {
    rows = source.read_inputs(file);
  } else {
    throw UsageError(fmt::format("{}: expected a file of numpy, .npy", file.string()));
  }
  refuse_unless_described(source.description, file.string(), *rows, /*has_target=*/false);
  if (!options.standardise) return rows;
  DataOptions plain = options;
  plain.standardise = false;
  const DataSplits data = open_data(source, plain, seed);
  return std::make_shared<StandardisedDataset>(rows, source.description, moments_of(*data.train, source.description));
}

}  // namespace tutti
