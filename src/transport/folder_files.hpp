// Files by which processes that share nothing but a folder tell each other something. A file is there whole or not at
// all: it is written beside its name and renamed. Nothing is synced, since nothing has to outlast the machine.
//
//   publish_file(folder / "call", text);
//   std::optional<std::string> call = read_file(folder / "call");
//
//   const LockedFile mine = LockedFile::publish(folder / "here-1", text);     // locked as long as this object is there
//   if (presence_of(folder / "here-1", true) == Presence::unlocked) ...             // its process has died
//
// What the system refuses is an Error that names the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/error.hpp>

namespace tutti::folder {

using Path = std::filesystem::path;

// "cannot <what> <path>: <the system's reason>"
Error system_error(std::string_view what, const Path& path, int problem);

// Whether a problem means that a file or folder is not there, or no longer (ESTALE: another host removed it).
bool is_gone(int problem);

void publish_file(const Path& path, std::span<const std::byte> head, std::span<const std::byte> body = {});
void publish_file(const Path& path, std::string_view text);

// None where there is no such file.
std::optional<std::string> read_file(const Path& path);

// Makes what others did there visible here. NFS remembers for up to a minute that a name is not there, or that it is;
// only on opening the folder it asks the server. False where the folder is gone.
bool look_afresh(const Path& folder);

// Names of all that is in a folder, as seen afresh; none where it is gone.
std::vector<std::string> names_in(const Path& folder);

// Opens a folder to look up names in it, with the same effect. Negative where it cannot be opened: `errno` says why.
int open_folder(const Path& folder);

enum class Presence {
  absent,
  unlocked,
  locked,  // or it cannot be told
};
// Not every file system tells one host of the locks of another: `is_near` says that the file's owner is on this one.
Presence presence_of(const Path& path, bool is_near);

// A file that is locked until this object goes, and the file with it. Where the process is killed, the system unlocks
// the file, and it stays. It is a lock of the open file (flock), so that ranks may as well be threads of one process.
class LockedFile {
 public:
  // From the moment others see the file, it is locked.
  static LockedFile publish(const Path& path, std::string_view text);
  // Makes it where it is not there. None where somebody else has it locked.
  static std::optional<LockedFile> take(const Path& path);

  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&& other) noexcept;
  ~LockedFile();

 private:
  LockedFile(Path path, int file) : path_(std::move(path)), file_(file) {}

  Path path_;
  int file_ = -1;
};

// As much of it as goes: others may be removing it as well.
void remove_with_contents(const Path& folder) noexcept;

}  // namespace tutti::folder
