// Where the workers of a ModelParallel run pass everything on through files (strategy::DataStore): a folder that all of
// them can write to is all that they share.
//
//   if (const std::optional<DataStoreFolder> store = data_store_of(run)) {
//     const FolderForNow above(store->path.parent_path());
//     std::unique_ptr<Transport> transport = join_folder(
//         {.folder = store->path, .is_own_folder = store->is_own, .rank = rank, .size = workers});
//     ...
//   }
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <tutti/train/run.hpp>

namespace tutti {

struct DataStoreFolder {
  std::filesystem::path path = {};
  bool is_own = true;  // the run's, which nobody has named
};

// Nothing where the run has no such strategy.
std::optional<DataStoreFolder> data_store_of(const Run& run);

// Makes a folder where it is not there, and those above it; takes those that it made away again, where nothing else has
// been put there. An Error names what cannot be made, and the system's reason.
class FolderForNow {
 public:
  explicit FolderForNow(const std::filesystem::path& folder);
  FolderForNow(const FolderForNow&) = delete;
  FolderForNow& operator=(const FolderForNow&) = delete;
  ~FolderForNow();

 private:
  std::vector<std::filesystem::path> made_;  // the deepest first
};

}  // namespace tutti
