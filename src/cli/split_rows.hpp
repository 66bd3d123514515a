// The rows that --split names.
#pragma once

#include <memory>
#include <string>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti::cli {

inline void refuse_unless_split(const std::string& name) {
  if (name != "train" && name != "validation" && name != "test")
    throw UsageError(fmt::format("--split: expected train, validation or test, found '{}'", name));
}

// A UsageError where the data has no such part.
inline std::shared_ptr<const Dataset> rows_of_split(const DataSplits& data, const std::string& name) {
  const std::shared_ptr<const Dataset>& rows = name == "train"        ? data.train
                                               : name == "validation" ? data.validation
                                                                      : data.test;
  if (!rows) throw UsageError(fmt::format("--split: the data has no rows for {}", name));
  return rows;
}

}  // namespace tutti::cli
