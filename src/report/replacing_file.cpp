#include "replacing_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {
namespace {

std::filesystem::path beside(const std::filesystem::path& target) { return target.string() + ".tmp"; }

// That the name changed survives a loss of power, where the file system can promise it.
void sync_folder_of(const std::filesystem::path& target) {
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return;
  ::fsync(handle);
  ::close(handle);
}

}  // namespace

ReplacingFile::ReplacingFile(std::filesystem::path target)
    : target_(std::move(target)), file_(std::in_place, beside(target_), OutputFile::Mode::replace) {}

ReplacingFile::~ReplacingFile() {
  if (!file_) return;
  std::error_code ignored;
  std::filesystem::remove(file_->path(), ignored);
}

void ReplacingFile::commit() {
  file_->sync();
  file_->close();
  std::error_code problem;
  std::filesystem::rename(file_->path(), target_, problem);
  if (problem) throw Error(fmt::format("cannot write {}: {}", target_.string(), problem.message()));
  file_.reset();
  sync_folder_of(target_);
}

}  // namespace tutti::detail
