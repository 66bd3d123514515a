#include "cli/lines.hpp"

#include <algorithm>

namespace tutti::cli {

void Lines::add(std::string_view bytes, std::string& text) {
  while (!bytes.empty()) {
    const std::size_t room = kLongestLine - partial_.size();
    const std::size_t end = bytes.substr(0, room + 1).find('\n');
    const std::size_t count = std::min({end, room, bytes.size()});
    partial_ += bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (bytes.empty()) return;
    if (end != std::string_view::npos) bytes.remove_prefix(1);
    text.append(prefix_).append(partial_).push_back('\n');
    partial_.clear();
  }
}

void Lines::finish(std::string& text) {
  if (!partial_.empty()) text.append(prefix_).append(partial_).push_back('\n');
  partial_.clear();
}

}  // namespace tutti::cli
