#include "folder_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace tutti::folder {
namespace {

Path beside(const Path& path) { return Path(path).concat(".new"); }

int write_all(int file, std::span<const std::byte> head, std::span<const std::byte> body) {
  while (!head.empty() || !body.empty()) {
    const std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(head.data()), head.size()},
                                     iovec{const_cast<std::byte*>(body.data()), body.size()}};
    const ssize_t written = ::writev(file, parts.data(), parts.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    const std::size_t of_head = std::min(static_cast<std::size_t>(written), head.size());
    head = head.subspan(of_head);
    body = body.subspan(static_cast<std::size_t>(written) - of_head);
  }
  return 0;
}

[[noreturn]] void give_up(std::string_view what, const Path& path, int problem) {
  ::unlink(beside(path).c_str());
  throw system_error(what, path, problem);
}

void write_beside(const Path& path, std::span<const std::byte> head, std::span<const std::byte> body) {
  const int file = ::open(beside(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) throw system_error("write", path, errno);
  int problem = write_all(file, head, body);
  // Over NFS a full disk may show only here.
  if (::close(file) != 0 && problem == 0) problem = errno;
  if (problem != 0) give_up("write", path, problem);
}

void put_in_place(const Path& path) {
  if (::rename(beside(path).c_str(), path.c_str()) != 0) give_up("write", path, errno);
}

int lock(int file, int how) {
  while (::flock(file, how | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Whether the path still means the file that was opened.
bool is_still_there(const Path& path, int file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

Error system_error(std::string_view what, const Path& path, int problem) {
  return Error(fmt::format("cannot {} {}: {}", what, path.string(), std::generic_category().message(problem)));
}

bool is_gone(int problem) { return problem == ENOENT || problem == ESTALE; }

void publish_file(const Path& path, std::span<const std::byte> head, std::span<const std::byte> body) {
  write_beside(path, head, body);
  put_in_place(path);
}

void publish_file(const Path& path, std::string_view text) { publish_file(path, std::as_bytes(std::span(text))); }

std::optional<std::string> read_file(const Path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && is_gone(errno)) return std::nullopt;
  if (file < 0) throw system_error("read", path, errno);
  std::string text;
  std::array<char, 4096> some;
  ssize_t count = 0;
  while ((count = ::read(file, some.data(), some.size())) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(some.data(), static_cast<std::size_t>(count));
  }
  const int problem = count < 0 ? errno : 0;
  ::close(file);
  if (is_gone(problem)) return std::nullopt;  // removed meanwhile, by another host
  if (problem != 0) throw system_error("read", path, problem);
  return text;
}

int open_folder(const Path& folder) { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

bool look_afresh(const Path& folder) {
  const int opened = open_folder(folder);
  if (opened < 0 && is_gone(errno)) return false;
  if (opened < 0) throw system_error("read", folder, errno);
  ::close(opened);
  return true;
}

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> names;
  DIR* opened = ::opendir(folder.c_str());
  if (opened == nullptr && is_gone(errno)) return names;
  if (opened == nullptr) throw system_error("read", folder, errno);
  // The end and a failure differ by errno alone.
  errno = 0;
  while (const dirent* entry = ::readdir(opened)) names.emplace_back(entry->d_name);
  const int problem = errno;
  ::closedir(opened);
  if (problem != 0 && !is_gone(problem)) throw system_error("read", folder, problem);
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  return names;
}

Presence presence_of(const Path& path, bool is_near) {
  if (!is_near) return ::access(path.c_str(), F_OK) != 0 && errno == ENOENT ? Presence::absent : Presence::locked;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? Presence::absent : Presence::locked;
  // Shared, so that several who look do not take each other for the owner.
  const int problem = lock(file, LOCK_SH);
  ::close(file);
  return problem == 0 ? Presence::unlocked : Presence::locked;
}

LockedFile LockedFile::publish(const Path& path, std::string_view text) {
  write_beside(path, std::as_bytes(std::span(text)), {});
  LockedFile locked(path, ::open(beside(path).c_str(), O_RDWR | O_CLOEXEC));
  if (locked.file_ < 0) give_up("write", path, errno);
  if (const int problem = lock(locked.file_, LOCK_EX); problem != 0) give_up("lock", path, problem);
  put_in_place(path);
  return locked;
}

std::optional<LockedFile> LockedFile::take(const Path& path) {
  for (;;) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) throw system_error("write", path, errno);
    const int problem = lock(file, LOCK_EX);
    if (problem == 0 && is_still_there(path, file)) return LockedFile(path, file);
    ::close(file);
    if (problem == EWOULDBLOCK) return std::nullopt;
    if (problem != 0) throw system_error("lock", path, problem);
    // Whoever had it removed it just now: the lock is on a file that nobody else will find.
  }
}

LockedFile::LockedFile(LockedFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

LockedFile& LockedFile::operator=(LockedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  return *this;
}

// Removed before it is unlocked: nobody can lock a file that is about to go and believe to have it.
LockedFile::~LockedFile() {
  if (file_ < 0) return;
  if (is_still_there(path_, file_)) ::unlink(path_.c_str());
  ::close(file_);
}

void remove_with_contents(const Path& folder) noexcept {
  // Somebody may be adding a last file just now, or looking at one, which NFS then keeps for a moment under another
  // name.
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    std::error_code problem;
    std::filesystem::remove_all(folder, problem);
    if (!problem) return;
    ::usleep(5000);
  }
}

}  // namespace tutti::folder
