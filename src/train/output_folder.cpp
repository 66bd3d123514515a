#include <tutti/train/output_folder.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/train/checkpoint.hpp>

namespace tutti {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLock = ".lock";

// Beside the folder, under the next free name.
fs::path make_aside(const fs::path& folder) {
  for (int number = 1;; ++number) {
    fs::path aside = fmt::format("{}.{}", folder.string(), number);
    if (::mkdir(aside.c_str(), 0777) == 0) return aside;
    if (errno != EEXIST)
      throw Error(fmt::format("cannot put the earlier run in {} aside as {}: {}", folder.string(), aside.string(),
                              std::generic_category().message(errno)));
  }
}

bool has_a_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  return std::getline(stream, line) && !stream.eof();
}

}  // namespace

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
  const fs::path file = path_ / kLock;
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0)
    throw Error(fmt::format("cannot write to {}: {}", path_.string(), std::generic_category().message(errno)));
  // Ends with the process, however it ends.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(std::exchange(lock_, -1));
    throw UsageError(fmt::format("another run is writing to {}; --output takes another folder", path_.string()));
  }
  AtomicFile::remove_temporaries(path_);
  if (fs::is_directory(checkpoints(), problem)) AtomicFile::remove_temporaries(checkpoints());
}

std::optional<fs::path> OutputFolder::begin_anew(const std::optional<fs::path>& in_use) {
  if (const fs::path log = path_ / "population.jsonl";
      CheckpointFolder(checkpoints(), {}).files().empty() && !has_a_line(log)) {
    // What a population has left that ended before its first generation did.
    if (fs::remove(log)) fs::remove_all(path_ / "members");
    return std::nullopt;
  }
  // Whoever works in it has files there that are no run's.
  const fs::path inside = fs::current_path().lexically_relative(fs::canonical(path_));
  if (!inside.empty() && *inside.begin() != "..")
    throw UsageError(
        fmt::format("output: {} has an earlier run in it, and is where this one was started, so that it "
                    "cannot be put aside; --output takes another folder",
                    path_.string()));
  fs::path plain = path_;
  if (!plain.has_filename()) plain = plain.parent_path();   // "runs/first/"
  if (fs::is_symlink(plain)) plain = fs::canonical(plain);  // beside it is the same disk
  // An earlier run is there for as long as its checkpoints are, so that these go last.
  std::vector<fs::path> names;
  const fs::path used = in_use ? fs::weakly_canonical(*in_use).lexically_relative(fs::canonical(plain)) : fs::path();
  const fs::path kept = used.empty() ? fs::path() : *used.begin();
  for (const fs::directory_entry& entry : fs::directory_iterator(plain)) {
    const fs::path name = entry.path().filename();
    if (name != kLock && name != checkpoints().filename() && name != kept) names.push_back(name);
  }
  if (fs::exists(plain / checkpoints().filename())) names.push_back(checkpoints().filename());
  const fs::path aside = make_aside(plain);
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::error_code problem;
    fs::rename(plain / names[i], aside / names[i], problem);
    if (!problem) continue;
    std::error_code ignored;
    while (i-- > 0) fs::rename(aside / names[i], plain / names[i], ignored);
    fs::remove(aside, ignored);
    throw Error(fmt::format("cannot put the earlier run in {} aside as {}: {}", plain.string(), aside.string(),
                            problem.message()));
  }
  return aside;
}

}  // namespace tutti
