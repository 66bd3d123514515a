// Rows of a CSV file, one after the other; every error names the file and the line.
//
//   CsvReader csv("iris.csv");
//   const std::size_t width = csv.column("petal width");
//   while (csv.next()) widest = std::max(widest, csv.number(width));
//
//   iris.csv:17: expected 5 columns, found 4
//   iris.csv:9: column 'petal width': expected a number, found 'abc'
//
// As RFC 4180 has it: a field in quotes may hold separators, line ends and doubled quotes; lines end in LF or CRLF. A
// byte order mark, empty lines and spaces around a field are passed over. Every failure is a UsageError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/error.hpp>

namespace tutti {

struct CsvOptions {
  bool header = true;  // the first line names the columns
  char separator = ',';
};

// One thread at a time.
class CsvReader {
 public:
  explicit CsvReader(const std::filesystem::path& path, CsvOptions options = {});
  // What is read already; `name` stands for it in error messages.
  CsvReader(std::string text, std::string name, CsvOptions options = {});
  // Fields are views into it.
  CsvReader(const CsvReader&) = delete;
  CsvReader& operator=(const CsvReader&) = delete;

  // The file, as error messages name it.
  const std::string& name() const { return name_; }
  std::size_t column_count() const { return column_count_; }
  // Of the header; empty where there is none.
  const std::vector<std::string>& column_names() const { return names_; }
  // By its name, or refused with the nearest one.
  std::size_t column(std::string_view name) const;

  // Goes to the next row; false where there is none.
  bool next();

  // Of the row: valid as long as the reader.
  std::string_view field(std::size_t column) const { return fields_.at(column); }
  // Finite; anything else is refused.
  double number(std::size_t column) const;
  // The line that the row starts on, from 1.
  std::int64_t line() const { return line_; }

  // What number a text is, if any; infinite ones are none.
  static std::optional<double> number_in(std::string_view text);

  // A UsageError at a line: "iris.csv:9: <what>", and of a column there: "iris.csv:9: column 'petal width': <what>".
  UsageError error(std::int64_t line, std::string_view what) const;
  UsageError error(std::int64_t line, std::size_t column, std::string_view what) const;
  // Of the file as a whole: "iris.csv: <what>".
  UsageError error(std::string_view what) const;

 private:
  bool read_row();
  const char* read_quoted(const char* at);

  std::string text_;
  std::string name_;
  CsvOptions options_;
  const char* at_;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
  std::size_t column_count_ = 0;
  std::vector<std::string> names_;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  // fields that are not in the file as they are
};

}  // namespace tutti
