// MNIST (LeCun, Cortes, Burges, 1998), as `tutti fetch mnist` brings it: 60,000 images of digits to learn from, and
// 10,000 to test with, grey values in 0..1.
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <tutti/data/data_folder.hpp>

#include "idx_rows.hpp"
#include "sources.hpp"

namespace tutti::detail {
namespace {

constexpr std::int64_t kDigits = 10;

// Plain or packed; before the format stands a dash, or a dot where it was unpacked long ago.
std::filesystem::path mnist_file(const std::filesystem::path& folder, const char* part, const char* format) {
  for (const char* dash : {"-", "."}) {
    for (const char* packed : {"", ".gz"}) {
      const std::filesystem::path file = folder / fmt::format("{}{}{}-ubyte{}", part, dash, format, packed);
      std::error_code problem;
      if (std::filesystem::exists(file, problem)) return file;
    }
  }
  throw Error(fmt::format("MNIST is not in {}: there is no {}; run `tutti fetch mnist`", folder.string(), part));
}

DataSource resolve_mnist(const Options& options) {
  const std::optional<JsonValue> named = options.find("folder");
  const std::optional<std::filesystem::path> folder = named ? std::optional(named->file_path()) : std::nullopt;
  std::vector<std::string> names;
  for (std::int64_t digit = 0; digit < kDigits; ++digit) names.push_back(std::to_string(digit));
  return {.description = {.inputs = {{"image", {.shape = {1, 28, 28}}}},
                          .target = {.shape = {}, .type = ValueType::int64},
                          .classes = kDigits,
                          .class_names = std::move(names)},
          .open =
              [folder] {
                const std::filesystem::path place = folder ? *folder : data_folder() / "mnist";
                const IdxPair train{.images = mnist_file(place, "train-images", "idx3"),
                                    .labels = mnist_file(place, "train-labels", "idx1")};
                const IdxPair test{.images = mnist_file(place, "t10k-images", "idx3"),
                                   .labels = mnist_file(place, "t10k-labels", "idx1")};
                return read_idx_splits({train}, test, kDigits);
              },
          .read_inputs = read_idx_images};
}

}  // namespace

void add_mnist(DataSourceRegistry& registry) { registry.add({.name = "mnist", .resolve = resolve_mnist}); }

}  // namespace tutti::detail
