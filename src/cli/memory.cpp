#include "cli/memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace tutti::cli {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

std::uint64_t available_on_machine() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

// The file holds "max" where there is no limit, which is no number either.
std::uint64_t read_number(const char* path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnknown;
}

std::uint64_t available_in_control_group() {
  const std::uint64_t most = read_number("/sys/fs/cgroup/memory.max");
  const std::uint64_t taken = read_number("/sys/fs/cgroup/memory.current");
  if (most == kUnknown || taken == kUnknown) return kUnknown;
  return most > taken ? most - taken : 0;
}

}  // namespace

std::uint64_t available_memory() { return std::min(available_on_machine(), available_in_control_group()); }

}  // namespace tutti::cli
