// A table in a CSV file, or in several: {"source": "csv", "file": "iris.csv", "label": "species"}. Numbers of some
// columns are the input, `features`, and one column is the target: a class or a number.
#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>
#include <tutti/data/csv.hpp>

#include "sources.hpp"

namespace tutti::detail {
namespace {

// Whole numbers with more different values than these count something rather than name it.
constexpr std::size_t kFewClasses = 20;

struct CsvColumns {
  std::vector<std::size_t> features;
  std::size_t label = 0;
};

// By name or by number.
std::size_t column_in(const CsvReader& csv, const JsonValue& value) {
  if (value.is_number())
    return static_cast<std::size_t>(
        value.integer({.min = 0, .max = static_cast<std::int64_t>(csv.column_count()) - 1}));
  if (!value.is_string()) throw value.expected("a column: its name, or its number from 0 on");
  try {
    return csv.column(value.string());
  } catch (const UsageError& error) {
    throw value.placed(error);
  }
}

CsvColumns columns_in(const CsvReader& csv, const Options& options) {
  CsvColumns columns{.features = {}, .label = column_in(csv, options.at("label"))};
  const std::optional<JsonValue> features = options.find("features");
  if (!features) {
    for (std::size_t column = 0; column < csv.column_count(); ++column) {
      if (column != columns.label) columns.features.push_back(column);
    }
    if (columns.features.empty()) throw csv.error("expected a column besides the label");
    return columns;
  }
  for (const JsonValue& value : features->elements()) {
    const std::size_t column = column_in(csv, value);
    if (column == columns.label) throw value.error("the label is no feature");
    if (std::ranges::find(columns.features, column) != columns.features.end())
      throw value.error("this column is there twice");
    columns.features.push_back(column);
  }
  if (columns.features.empty()) throw features->expected("at least one column");
  return columns;
}

// What a file has, labels as they are written.
struct CsvTable {
  std::vector<float> values;
  std::vector<std::string_view> labels;  // in the reader's memory
  std::vector<std::int64_t> lines;       // that the rows start on
};

float float_in(const CsvReader& csv, std::size_t column, double number) {
  const auto value = static_cast<float>(number);
  if (std::isfinite(value)) return value;
  throw csv.error(csv.line(), column,
                  fmt::format("expected a number that float32 holds, found '{}'", csv.field(column)));
}

CsvTable read_table(CsvReader& csv, const CsvColumns& columns) {
  CsvTable table;
  while (csv.next()) {
    for (const std::size_t column : columns.features) table.values.push_back(float_in(csv, column, csv.number(column)));
    const std::string_view label = csv.field(columns.label);
    if (label.empty()) throw csv.error(csv.line(), columns.label, "expected a label, found nothing");
    table.labels.push_back(label);
    table.lines.push_back(csv.line());
  }
  if (table.labels.empty()) throw csv.error("there are no rows");
  return table;
}

std::optional<std::int64_t> whole_number_in(std::string_view text) {
  constexpr double kMost = 9007199254740992;  // 2^53: up to here doubles know every whole number
  const std::optional<double> number = CsvReader::number_in(text);
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kMost) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

// A file that is read.
struct CsvFile {
  CsvFile(const std::filesystem::path& path, const CsvOptions& format) : csv(path, format) {}

  void read(const CsvColumns& columns) { table = read_table(csv, columns); }
  UsageError error(std::size_t row, std::size_t column, std::string_view what) const {
    return csv.error(table.lines[row], column, what);
  }

  CsvReader csv;
  CsvTable table;
};

void expect_columns_of(const CsvReader& first, const CsvReader& other) {
  const std::vector<std::string>& expected = first.column_names();
  const std::vector<std::string>& found = other.column_names();
  if (found != expected) {
    const auto at = static_cast<std::size_t>(std::ranges::mismatch(expected, found).in1 - expected.begin());
    const auto name_in = [at](const std::vector<std::string>& names) {
      return at < names.size() ? fmt::format("'{}'", names[at]) : "missing";
    };
    throw other.error(fmt::format("expected the columns of {}; the first that differs is {} there, and {} here",
                                  first.name(), name_in(expected), name_in(found)));
  }
  if (other.column_count() != first.column_count())
    throw other.error(fmt::format("expected the {} columns of {}, found {}", first.column_count(), first.name(),
                                  other.column_count()));
}

// What the labels of files mean.
class CsvTarget {
 public:
  // The rule that docs/run_file.md tells, where `wish` is neither "class" nor "number".
  CsvTarget(const std::deque<CsvFile>& files, std::size_t column, const std::string& wish)
      : is_class_(wish == "class") {
    std::vector<std::string_view> labels;
    for (const CsvFile& file : files) labels.insert(labels.end(), file.table.labels.begin(), file.table.labels.end());
    const auto is_number = [](std::string_view label) { return CsvReader::number_in(label).has_value(); };
    const auto is_whole = [](std::string_view label) { return whole_number_in(label).has_value(); };
    if (wish.empty()) {
      std::vector<std::string_view> numbers;
      std::ranges::copy_if(labels, std::back_inserter(numbers), is_number);
      is_class_ = numbers.empty() || (std::ranges::all_of(numbers, is_whole) && count_values(numbers) <= kFewClasses);
    }
    if (is_class_) name_classes(labels, std::ranges::all_of(labels, is_whole));
    if (is_class_ || !wish.empty()) return;
    for (const CsvFile& file : files) {
      const auto text = std::ranges::find_if_not(file.table.labels, is_number);
      if (text == file.table.labels.end()) continue;
      throw file.error(static_cast<std::size_t>(text - file.table.labels.begin()), column,
                       fmt::format("expected a number, found '{}'; \"target\": \"class\" takes labels as text", *text));
    }
  }

  const std::vector<std::string>& class_names() const { return names_; }
  ValueSpec spec() const {
    return is_class_ ? ValueSpec{.shape = {}, .type = ValueType::int64} : ValueSpec{.shape = {1}};
  }

  torch::Tensor tensor(const CsvFile& file, std::size_t column) const {
    const CsvTable& table = file.table;
    const auto rows = static_cast<std::int64_t>(table.labels.size());
    const auto wrong = [&](std::size_t row, std::string_view what) {
      return file.error(row, column, fmt::format("expected {}, found '{}'", what, table.labels[row]));
    };
    if (!is_class_) {
      torch::Tensor numbers = torch::empty({rows, 1}, torch::kFloat32);
      for (std::size_t row = 0; row < table.labels.size(); ++row) {
        const std::optional<double> number = CsvReader::number_in(table.labels[row]);
        if (!number) throw wrong(row, "a number");
        const auto value = static_cast<float>(*number);
        if (!std::isfinite(value)) throw wrong(row, "a number that float32 holds");
        numbers.data_ptr<float>()[row] = value;
      }
      return numbers;
    }
    torch::Tensor classes = torch::empty({rows}, torch::kInt64);
    for (std::size_t row = 0; row < table.labels.size(); ++row) {
      const auto found = numbers_.find(key(table.labels[row]));
      if (found == numbers_.end()) throw wrong(row, fmt::format("one of the {} classes to train with", names_.size()));
      classes.data_ptr<std::int64_t>()[row] = found->second;
    }
    return classes;
  }

 private:
  static std::size_t count_values(std::vector<std::string_view> labels) {
    std::vector<std::int64_t> values;
    for (const std::string_view label : labels) values.push_back(*whole_number_in(label));
    std::ranges::sort(values);
    return static_cast<std::size_t>(std::unique(values.begin(), values.end()) - values.begin());
  }

  // 1 and 1.0 are one class.
  std::string key(std::string_view label) const {
    const std::optional<std::int64_t> whole = are_whole_ ? whole_number_in(label) : std::nullopt;
    return whole ? std::to_string(*whole) : std::string(label);
  }

  // In ascending order: of numbers by their value, of texts by their bytes.
  void name_classes(const std::vector<std::string_view>& labels, bool are_whole) {
    are_whole_ = are_whole;
    for (const std::string_view label : labels) numbers_.try_emplace(key(label), 0);
    for (const auto& [name, number] : numbers_) names_.push_back(name);
    const auto value = [](const std::string& name) { return whole_number_in(name).value(); };
    if (are_whole) {
      std::ranges::sort(names_, {}, value);
    } else {
      std::ranges::sort(names_);
    }
    for (std::size_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = static_cast<std::int64_t>(i);
  }

  bool is_class_;
  bool are_whole_ = false;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int64_t> numbers_;
};

std::shared_ptr<const Dataset> csv_rows(CsvFile& file, const CsvColumns& columns, const CsvTarget& target) {
  const auto rows = static_cast<std::int64_t>(file.table.labels.size());
  const auto width = static_cast<std::int64_t>(columns.features.size());
  const torch::Tensor features = torch::from_blob(file.table.values.data(), {rows, width}, torch::kFloat32).clone();
  return std::make_shared<TensorDataset>(std::vector{features}, target.tensor(file, columns.label));
}

// Columns by their names; where there are none, by their numbers, with the label's or without.
struct CsvInputs {
  CsvOptions format;
  CsvColumns columns;
  std::vector<std::string> names;  // of the file to train with
  std::size_t column_count = 0;

  std::shared_ptr<const Dataset> read(const std::filesystem::path& path) const {
    CsvReader csv(path, format);
    std::vector<std::size_t> found;
    for (const std::size_t column : columns.features) {
      const bool lacks_label = csv.column_count() + 1 == column_count && column > columns.label;
      found.push_back(format.header ? csv.column(names[column]) : column - (lacks_label ? 1 : 0));
      if (found.back() >= csv.column_count())
        throw csv.error(fmt::format("expected {} columns, found {}", column_count, csv.column_count()));
    }
    std::vector<float> values;
    std::int64_t rows = 0;
    for (; csv.next(); ++rows) {
      for (const std::size_t column : found) values.push_back(float_in(csv, column, csv.number(column)));
    }
    if (rows == 0) throw csv.error("there are no rows");
    return rows_without_target(
        torch::from_blob(values.data(), {rows, static_cast<std::int64_t>(found.size())}, torch::kFloat32).clone());
  }
};

DataSource resolve_csv(const Options& options) {
  CsvOptions format{.header = options.boolean("header", true)};
  if (const std::optional<JsonValue> separator = options.find("separator")) {
    const std::string& text = separator->string();
    if (text.size() != 1 || std::string_view("\"\r\n ").find(text.front()) != std::string_view::npos)
      throw separator->expected(R"(one character, such as "," or ";" or "\t")");
    format.separator = text.front();
  }
  const std::string wish = options.choice("target", {"class", "number"}, "");

  std::deque<CsvFile> files;
  CsvColumns columns;
  const std::vector<std::filesystem::path> paths = options.at("file").existing_files();
  for (const std::filesystem::path& path : paths) {
    CsvFile& file = files.emplace_back(path, format);
    if (files.size() == 1) columns = columns_in(file.csv, options);
    expect_columns_of(files.front().csv, file.csv);
    file.read(columns);
  }
  const CsvReader& csv = files.front().csv;
  const CsvTarget target(files, columns.label, wish);
  std::vector<std::shared_ptr<const Dataset>> parts;
  for (CsvFile& file : files) parts.push_back(csv_rows(file, columns, target));
  DataSplits splits{.train = rows_of_files(std::move(parts))};
  if (const std::optional<JsonValue> test_file = options.find("test_file")) {
    CsvFile test(test_file->existing_file(), format);
    expect_columns_of(csv, test.csv);
    test.read(columns);
    splits.test = csv_rows(test, columns, target);
  }
  const auto width = static_cast<std::int64_t>(columns.features.size());
  return {.description = {.inputs = {{"features", {.shape = {width}}}},
                          .target = target.spec(),
                          .classes = static_cast<std::int64_t>(target.class_names().size()),
                          .class_names = target.class_names()},
          .open = [splits] { return splits; },
          .has_test = splits.test != nullptr,
          .files = paths,
          .read_inputs = [inputs = CsvInputs{format, columns, csv.column_names(), csv.column_count()}](
                             const std::filesystem::path& file) { return inputs.read(file); }};
}

}  // namespace

void add_csv(DataSourceRegistry& registry) { registry.add({.name = "csv", .resolve = resolve_csv}); }

}  // namespace tutti::detail
