// A whole file in memory, for readers that go over it once.
#pragma once

#include <filesystem>
#include <string>

namespace tutti::detail {

// Without the byte order mark that some editors write before UTF-8. A UsageError names a file that cannot be read.
std::string read_text(const std::filesystem::path& path);

}  // namespace tutti::detail
