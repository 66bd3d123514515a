// `tutti export runs/first weights.safetensors`: what a run has learnt, for Python and others.
#include <filesystem>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/safetensors.hpp>
#include <tutti/data/npz.hpp>

#include "cli/command_line.hpp"
#include "cli/trained_run.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

NpyType npy_type(const NamedArray& array) {
  switch (array.type()) {
    case DataType::float32: return NpyType::float32;
    case DataType::float64: return NpyType::float64;
    case DataType::int32: return NpyType::int32;
    case DataType::int64: return NpyType::int64;
    case DataType::float16:
    case DataType::bfloat16: break;
  }
  throw UsageError(fmt::format("'{}' is {}, which .npz files have not; export to .safetensors", array.name(),
                               to_string(array.type())));
}

void write_npz(const std::filesystem::path& file, const ParameterSet& weights) {
  std::ostringstream stream;
  NpzWriter npz(stream);
  for (const NamedArray& array : weights)
    npz.add(array.name(), {.type = npy_type(array), .shape = array.shape(), .bytes = array.bytes()});
  npz.finish();
  write_file(file, stream.str());
}

}  // namespace

void run_export(Arguments arguments) {
  TrainedRun trained("export");
  std::string file;
  CommandLine line(
      "Writes what a run has learnt, its parameters and buffers by name, as .safetensors or .npz; torch and numpy read "
      "these.",
      "tutti export");
  trained.add_to(line);
  line.positional("file", file, "what to write: weights.safetensors, weights.npz");
  if (!line.parse(arguments)) return;
  if (file.empty()) throw UsageError("expected a file to write: tutti export runs/first weights.safetensors");
  const std::string extension = std::filesystem::path(file).extension().string();
  if (extension != ".safetensors" && extension != ".npz")
    throw UsageError(fmt::format("expected a file that ends in .safetensors or .npz, found {}", file));

  trained.load();
  extension == ".npz" ? write_npz(file, trained.weights()) : write_safetensors(file, trained.weights());
  fmt::print("{}: {} arrays, {} bytes, of {}\n", file, trained.weights().size(), trained.weights().bytes(),
             trained.file().string());
}

}  // namespace tutti::cli
