#include "cli/output_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

namespace tutti::cli {
namespace {

// A pipe that can be written takes that much at once; a file takes anything.
std::size_t most_at_once(int descriptor) {
  struct stat status {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  return is_file ? std::size_t{1} << 20 : PIPE_BUF;
}

}  // namespace

OutputQueue::OutputQueue(int descriptor) : descriptor_(descriptor), most_at_once_(most_at_once(descriptor)) {}

void OutputQueue::write_some() {
  std::string_view piece = std::string_view(text_).substr(begin_);
  if (piece.size() > most_at_once_) {
    piece = piece.substr(0, most_at_once_);
    if (const std::size_t last = piece.rfind('\n'); last != std::string_view::npos) piece = piece.substr(0, last + 1);
  }
  const ssize_t count = problem_.empty() ? ::write(descriptor_, piece.data(), piece.size()) : 0;
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count < 0) problem_ = std::generic_category().message(errno);
  begin_ = problem_.empty() ? begin_ + static_cast<std::size_t>(count) : text_.size();
  // What was written stays until there is much of it, and never less than tells whether a line has ended.
  if (begin_ == text_.size() || begin_ > kFull) {
    const bool within = within_line();
    text_.erase(0, begin_ - (within ? 1 : 0));
    begin_ = within ? 1 : 0;
  }
}

}  // namespace tutti::cli
