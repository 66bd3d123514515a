#include <tutti/data/data_folder.hpp>

#include <cstdlib>

#include <tutti/base/error.hpp>

namespace tutti {

std::filesystem::path data_folder() {
  const char* folder = std::getenv("TUTTI_DATA");
  if (folder != nullptr && *folder != '\0') return folder;
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::filesystem::path(home) / ".cache" / "tutti";
  throw UsageError("where data is kept is not known: neither TUTTI_DATA nor HOME is set");
}

}  // namespace tutti
