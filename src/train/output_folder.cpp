#include <tutti/train/output_folder.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/train/checkpoint.hpp>

namespace tutti {

namespace fs = std::filesystem;

OutputFolder::OutputFolder(fs::path folder) : path_(std::move(folder)) { open(); }

OutputFolder::~OutputFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void OutputFolder::open() {
  std::error_code problem;
  if (fs::exists(path_, problem) && !fs::is_directory(path_, problem))
    throw UsageError(fmt::format("output: {} is a file, expected a folder", path_.string()));
  fs::create_directories(path_, problem);
  if (problem) throw Error(fmt::format("cannot make the folder {}: {}", path_.string(), problem.message()));
  const fs::path file = path_ / ".lock";
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0)
    throw Error(fmt::format("cannot write to {}: {}", path_.string(), std::generic_category().message(errno)));
  // Ends with the process, however it ends.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(std::exchange(lock_, -1));
    throw UsageError(fmt::format("another run is writing to {}; --output takes another folder", path_.string()));
  }
  // Somebody else may have put the folder aside before the lock was had.
  struct stat had {};
  struct stat there {};
  if (::fstat(lock_, &had) != 0 || ::stat(file.c_str(), &there) != 0 || had.st_ino != there.st_ino) {
    ::close(std::exchange(lock_, -1));
    throw UsageError(fmt::format("another run is writing to {}; --output takes another folder", path_.string()));
  }
  AtomicFile::remove_temporaries(path_);
  if (fs::is_directory(checkpoints(), problem)) AtomicFile::remove_temporaries(checkpoints());
}

std::optional<fs::path> OutputFolder::begin_anew() {
  if (CheckpointFolder(checkpoints(), {}).files().empty()) return std::nullopt;
  fs::path plain = path_;
  if (!plain.has_filename()) plain = plain.parent_path();  // "runs/first/"
  std::error_code problem;
  for (int number = 1;; ++number) {
    fs::path aside = fmt::format("{}.{}", plain.string(), number);
    if (fs::exists(fs::symlink_status(aside, problem))) continue;
    fs::rename(plain, aside, problem);
    if (problem) {
      throw Error(fmt::format("cannot put the earlier run in {} aside as {}: {}", plain.string(), aside.string(),
                              problem.message()));
    }
    ::close(std::exchange(lock_, -1));
    open();
    return aside;
  }
}

}  // namespace tutti
