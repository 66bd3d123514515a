#include <tutti/base/atomic_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

constexpr std::string_view kPrefix = ".tutti-";
constexpr std::string_view kSuffix = ".tmp";
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // Linux takes no more than 2 GiB a call

Error cannot_write(const std::filesystem::path& path, std::string_view reason) {
  return Error(fmt::format("cannot write {}: {}", path.string(), reason));
}

std::string reason_of(int problem) { return std::generic_category().message(problem); }

// What a link points to; the path itself where it is none, or points nowhere.
std::filesystem::path behind_links(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::is_symlink(path, problem)) return path;
  const std::filesystem::path target = std::filesystem::canonical(path, problem);
  return problem ? path : target;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// So that the new name outlasts a loss of power. Not every file system can, and not every folder may be opened: the
// file itself is safe then, too, under one of the two names.
int sync_folder(const std::filesystem::path& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return 0;
  const int problem = ::fsync(opened) == 0 ? 0 : errno;
  ::close(opened);
  return problem == EINVAL || problem == ENOTSUP ? 0 : problem;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), target_(behind_links(path_)) {
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  // To rename over a device would replace the device.
  if (exists && !S_ISREG(old.st_mode))
    throw cannot_write(path_, S_ISDIR(old.st_mode) ? reason_of(EISDIR) : "it is not a regular file");
  // A file that may not be written may still be replaced, which nobody would expect.
  if (exists && ::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0)
    throw cannot_write(path_, reason_of(errno));
  open_temporary();
  if (exists && ::fchmod(file_, old.st_mode & 07777u) != 0) fail(errno);
}

AtomicFile::~AtomicFile() { discard(); }

// Names that are taken, by another thread, by another host, or by a process that was killed, are left alone.
void AtomicFile::open_temporary() {
  for (int number = 0; file_ < 0; ++number) {
    temporary_ = folder_of(target_) / fmt::format("{}{}-{}{}", kPrefix, ::getpid(), number, kSuffix);
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST && errno != EINTR) throw cannot_write(path_, reason_of(errno));
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require_open();
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  require_open();
  if (::fsync(file_) != 0) fail(errno);
  if (::close(std::exchange(file_, -1)) != 0) fail(errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  if (const int problem = sync_folder(folder_of(target_))) fail(problem);
}

void AtomicFile::require_open() const {
  if (problem_ != 0) throw cannot_write(path_, reason_of(problem_));
  if (file_ < 0) throw UsageError(fmt::format("cannot write {}: it was committed already", path_.string()));
}

void AtomicFile::fail(int problem) {
  problem_ = problem;
  discard();
  throw cannot_write(path_, reason_of(problem));
}

void AtomicFile::discard() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

bool AtomicFile::is_temporary(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

std::size_t AtomicFile::remove_temporaries(const std::filesystem::path& folder) {
  try {
    std::vector<std::filesystem::path> leftovers;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (is_temporary(entry.path()) && entry.is_regular_file()) leftovers.push_back(entry.path());
    }
    for (const std::filesystem::path& leftover : leftovers) std::filesystem::remove(leftover);
    return leftovers.size();
  } catch (const std::filesystem::filesystem_error& problem) {
    throw Error(fmt::format("cannot clear {} of temporary files: {}", folder.string(), problem.code().message()));
  }
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace tutti
