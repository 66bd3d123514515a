// Files that are either the old one or the new one, whole, whatever happens in between: a full disk, a killed process,
// a machine that loses its power.
//
//   AtomicFile file("runs/first/model.safetensors");
//   file.write(header);                        // text, or bytes, which are not copied
//   file.write(std::as_bytes(weights));
//   file.commit();                             // from now on others see it
//
//   write_file("runs/first/summary.json", text);   // the same in one call
//
// What is written goes into a temporary file in the same folder, which is synced and then takes the place of its
// target. Without `commit`, or where it fails, the target stays as it was and the temporary file is removed. An old
// file hands on its permissions; a symbolic link stays, and the file that it points to is replaced.
//
// A process that is killed leaves its temporary file behind. All of them are named `.tutti-<process>-<number>.tmp`, and
// AtomicFile::remove_temporaries clears a folder of them.
//
// Every failure is an Error that names the path and the system's reason:
//
//   cannot write runs/first/model.safetensors: No space left on device
//
// One thread at a time for each AtomicFile; several may write into one folder, and the last to commit a path wins.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace tutti {

class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Each call goes to the system at once: many small pieces are better put together first.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  // Once. After it, or after a failure, nothing more can be written.
  void commit();

  const std::filesystem::path& path() const { return path_; }

  // Whether a path is named as temporary files are.
  static bool is_temporary(const std::filesystem::path& path);
  // Removes them all from this folder, and says how many there were; for whoever knows that nobody writes there now.
  static std::size_t remove_temporaries(const std::filesystem::path& folder);

 private:
  void open_temporary();
  void require_open() const;
  [[noreturn]] void fail(int problem);
  void discard() noexcept;

  std::filesystem::path path_;       // as given, for messages
  std::filesystem::path target_;     // the same, or what it links to
  std::filesystem::path temporary_;  // empty where there is none
  int file_ = -1;
  int problem_ = 0;  // what failed first
};

// Replaces the file, or makes it.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace tutti
