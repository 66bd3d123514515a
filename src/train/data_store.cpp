#include <tutti/train/data_store.hpp>

#include <system_error>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {

namespace fs = std::filesystem;

std::optional<DataStoreFolder> data_store_of(const Run& run) {
  const auto* cut = std::get_if<strategy::ModelParallel>(&run.graph.effective_strategy());
  const auto* store = cut == nullptr ? nullptr : std::get_if<strategy::DataStore>(&cut->communication);
  if (store == nullptr) return std::nullopt;
  const fs::path path = store->path.empty() ? fs::path(run.output) / "store" : fs::path(store->path);
  return DataStoreFolder{fs::absolute(path).lexically_normal(), store->path.empty()};
}

FolderForNow::FolderForNow(const fs::path& folder) {
  std::error_code problem;
  for (fs::path one = folder; one.has_relative_path() && !fs::exists(one, problem); one = one.parent_path())
    made_.push_back(one);
  fs::create_directories(folder, problem);
  if (problem) throw Error(fmt::format("cannot make the folder {}: {}", folder.string(), problem.message()));
}

FolderForNow::~FolderForNow() {
  std::error_code problem;
  for (const fs::path& one : made_) {
    if (!fs::remove(one, problem)) return;  // something is in it
  }
}

}  // namespace tutti
