// Sources of data as a run file names them.
//
//   ReadSource data = read_source(R"({"source": "csv", "file": "iris.csv", "label": "species"})", folder.path());
//   DataSplits rows = data.open();
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <tutti/data/data_options.hpp>

namespace tutti::testing {

struct ReadSource {
  DataSource source;
  DataOptions options;

  DataSplits open(std::uint64_t seed = 0) const { return open_data(source, options, seed); }
};

// As read_run() does it, of a file `run.json` in the folder.
inline ReadSource read_source(const std::string& json, const std::filesystem::path& folder) {
  std::ofstream(folder / "run.json") << json;
  const JsonValue value = JsonDocument::read_file(folder / "run.json").root();
  const Options options(value);
  const DataSourceRegistry registry;
  DataSource source = registry.at(options.at("source")).resolve(options);
  DataOptions wishes = read_data_options(options, source);
  options.refuse_other_keys({});
  return {std::move(source), wishes};
}

}  // namespace tutti::testing
