#include <tutti/train/plugin.hpp>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr detail::PluginStamp kOwnStamp = detail::make_plugin_stamp();

// To load a library that misses its end would end this process.
bool is_cut_short(std::string_view bytes) {
  ElfW(Ehdr) header;
  if (bytes.size() < sizeof(header)) return true;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    const std::size_t at = header.e_phoff + i * sizeof(segment);
    if (at > bytes.size() || bytes.size() - at < sizeof(segment)) return true;
    std::memcpy(&segment, bytes.data() + at, sizeof(segment));
    if (segment.p_type == PT_LOAD &&
        (segment.p_offset > bytes.size() || bytes.size() - segment.p_offset < segment.p_filesz))
      return true;
  }
  return false;
}

std::string bytes_of_library(const fs::path& file) {
  if (!fs::exists(file)) throw UsageError(fmt::format("{}: there is no such file", file.string()));
  std::ifstream stream(file, std::ios::binary);
  if (::access(file.c_str(), R_OK) != 0)
    throw UsageError(fmt::format("{} cannot be read: {}", file.string(), std::strerror(errno)));
  constexpr std::string_view kBegin = "\177ELF";
  std::string begin(kBegin.size(), '\0');
  if (!fs::is_regular_file(file) || !stream.read(begin.data(), std::ssize(begin)) || begin != kBegin)
    throw UsageError(fmt::format("{} is no shared library", file.string()));
  std::string bytes = begin + std::string(std::istreambuf_iterator<char>(stream), {});
  if (is_cut_short(bytes)) throw UsageError(fmt::format("{} is cut short", file.string()));
  return bytes;
}

// A plugin that has the libraries of tutti in itself has their stamp, too.
std::vector<std::string_view> stamps_in(std::string_view bytes) {
  std::vector<std::string_view> stamps;
  for (std::size_t at = bytes.find(detail::kPluginMark); at != std::string_view::npos;
       at = bytes.find(detail::kPluginMark, at + 1)) {
    const std::string_view text = bytes.substr(at, sizeof(detail::PluginStamp::text));
    stamps.push_back(text.substr(0, text.find('\0')));
  }
  return stamps;
}

// By what stands in the file: nothing of a library that was built for another version is run, not even what it does
// when it is loaded.
void refuse_other_versions(const fs::path& file) {
  const std::string bytes = bytes_of_library(file);
  const std::vector<std::string_view> stamps = stamps_in(bytes);
  if (stamps.empty())
    throw UsageError(fmt::format("{} is no plugin: TUTTI_PLUGIN in tutti/train/plugin.hpp makes one", file.string()));
  if (std::ranges::find(stamps, kOwnStamp.text) != stamps.end()) return;
  const auto versions = [](std::string_view stamp) { return stamp.substr(detail::kPluginMark.size()); };
  throw UsageError(fmt::format("{} was built for {}, and this is {}: build it anew", file.string(),
                               versions(stamps.front()), versions(kOwnStamp.text)));
}

// What it throws is told with its name.
template <typename F>
void run_its_code(const fs::path& file, F f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = error.what();  // of libtorch's, with a trace behind it
    throw UsageError(fmt::format("{}: {}", file.string(), why.substr(0, why.find('\n'))));
  } catch (...) {
    throw UsageError(fmt::format("{}: what it threw is no std::exception", file.string()));
  }
}

using PluginFunction = void (*)(Registry&);

PluginFunction function_of(const fs::path& file) {
  // By its whole path, since a name alone would be looked for elsewhere; and for good, since what it adds is its code.
  // Its statics are made then, and may throw, though dlopen is declared as what does not.
  void* (*const volatile open)(const char*, int) = ::dlopen;
  void* library = nullptr;
  run_its_code(file, [&] { library = open(fs::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); });
  if (library == nullptr) throw UsageError(fmt::format("{} cannot be loaded: {}", file.string(), ::dlerror()));
  void* function = ::dlsym(library, "tutti_plugin");
  if (function == nullptr)
    throw UsageError(fmt::format("{} exports no function tutti_plugin, which TUTTI_PLUGIN makes", file.string()));
  return reinterpret_cast<PluginFunction>(function);
}

}  // namespace

void load_plugin(const fs::path& file, Registry& registry) {
  refuse_other_versions(file);
  const PluginFunction function = function_of(file);
  Registry with = registry;
  run_its_code(file, [&] { function(with); });
  registry = std::move(with);
}

}  // namespace tutti
