#include "output_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {
namespace {

// Closed in programs that this one starts ("e").
const char* flags_of(OutputFile::Mode mode) {
  switch (mode) {
    case OutputFile::Mode::replace: return "wbe";
    case OutputFile::Mode::append: return "abe";
    case OutputFile::Mode::create_new: break;
  }
  return "wbxe";
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, Mode mode)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), flags_of(mode))) {
  if (!file_) fail(errno);
}

void OutputFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) fail(errno);
}

void OutputFile::flush() {
  if (std::fflush(file_.get()) != 0) fail(errno);
}

void OutputFile::close() {
  if (std::fclose(file_.release()) != 0) fail(errno);
}

void OutputFile::fail(int problem) const {
  throw Error(fmt::format("cannot write {}: {}", path_.string(), std::generic_category().message(problem)));
}

void make_folder(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) throw Error(fmt::format("cannot make the folder {}: {}", folder.string(), problem.message()));
}

}  // namespace tutti::detail
