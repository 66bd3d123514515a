#include "file_text.hpp"

#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {

std::string read_text(const std::filesystem::path& path) {
  std::error_code problem;
  const std::uintmax_t size = std::filesystem::is_regular_file(path, problem) ? file_size(path, problem) : 0;
  std::ifstream stream(path, std::ios::binary);
  if (problem || !stream || !std::filesystem::is_regular_file(path, problem))
    throw UsageError(fmt::format("cannot read {}", path.string()));
  std::string text;
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  std::string start(kMark.size(), '\0');
  stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(stream.gcount()));
  if (start != kMark) text = start;
  if (size <= kMark.size()) return text;
  const std::size_t before = text.size();
  text.resize(before + static_cast<std::size_t>(size) - kMark.size());
  stream.read(text.data() + before, static_cast<std::streamsize>(text.size() - before));
  if (static_cast<std::size_t>(stream.gcount()) != text.size() - before)
    throw UsageError(fmt::format("{} ends early while it is read", path.string()));
  return text;
}

}  // namespace tutti::detail
