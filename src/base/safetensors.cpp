#include <tutti/base/safetensors.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/checksum.hpp>
#include <tutti/base/error.hpp>

#include "safetensors_header.hpp"

namespace tutti {
namespace {

using detail::SafetensorsHeader;

static_assert(std::endian::native == std::endian::little, "a file has the lowest byte first, as memory here");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kBlock = std::size_t{1} << 20;  // read and summed up while it is in the cache

// A file that is read from its beginning to its end.
class Input {
 public:
  // Without O_NONBLOCK a pipe would be waited for.
  explicit Input(const std::filesystem::path& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ < 0) throw Error(std::generic_category().message(errno));
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() { ::close(file_); }

  std::uint64_t size() const {
    struct stat status {};
    if (::fstat(file_, &status) != 0) throw Error(std::generic_category().message(errno));
    if (S_ISDIR(status.st_mode)) throw Error(std::generic_category().message(EISDIR));
    if (!S_ISREG(status.st_mode)) throw Error("it is not a regular file");
    return static_cast<std::uint64_t>(status.st_size);
  }

  void read(std::span<std::byte> into) {
    while (!into.empty()) {
      const ssize_t count = ::read(file_, into.data(), into.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw Error(std::generic_category().message(errno));
      if (count == 0) throw Error("it became shorter while it was read");
      into = into.subspan(static_cast<std::size_t>(count));
    }
  }

  void read_and_sum(std::span<std::byte> into, Checksum& sum) {
    while (!into.empty()) {
      const std::span<std::byte> block = into.first(std::min(into.size(), kBlock));
      read(block);
      sum.add(block);
      into = into.subspan(block.size());
    }
  }

 private:
  int file_;
};

// The text of the header, whose length has been looked at.
std::string read_header(Input& input, std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes)
    throw Error(fmt::format("it has {} bytes, and a safetensors file has at least {}", file_bytes, kLengthBytes));
  std::uint64_t length = 0;
  input.read(std::as_writable_bytes(std::span(&length, 1)));
  if (length > detail::kMostHeaderBytes) {
    throw Error(fmt::format("its header would have {} bytes, and {} are the most: it is not a safetensors file", length,
                            detail::kMostHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes) {
    throw Error(fmt::format("its header has {} bytes, and {} follow: the file is cut short", length,
                            file_bytes - kLengthBytes));
  }
  std::string text(length, '\0');
  input.read(std::as_writable_bytes(std::span(text)));
  return text;
}

std::string with_length(const std::string& header) {
  const std::uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header;
}

// The digits taken out of the metadata, and set to zeros in the text; nothing where there are none.
std::string take_checksum(SafetensorsHeader& header, std::string& text) {
  const auto found = header.metadata.find(std::string(detail::kChecksumKey));
  if (found == header.metadata.end()) return "";
  std::string digits = std::move(found->second);
  header.metadata.erase(found);
  const auto place = detail::find_checksum(text, digits);
  if (!place || digits.size() != detail::kUnsetChecksum.size() ||
      digits.find_first_not_of("0123456789abcdef") != digits.npos)
    throw Error(fmt::format("its \"{}\" is not of 16 digits from 0 to 9 and a to f", detail::kChecksumKey));
  text.replace(*place, digits.size(), detail::kUnsetChecksum);
  return digits;
}

std::vector<ParameterLayout> layouts_of(const ParameterSet& parameters, const std::vector<ArrayOnDemand>& more) {
  std::vector<ParameterLayout> layouts;
  for (const NamedArray& array : parameters) layouts.push_back(array.layout());
  for (const ArrayOnDemand& array : more) {
    if (parameters.find(array.layout.name) != nullptr)
      throw UsageError(fmt::format("there is an array \"{}\" already", array.layout.name));
    layouts.push_back(array.layout);
  }
  return layouts;
}

SafetensorsFile read_file(const std::filesystem::path& path, const SafetensorsReadOptions& options) {
  Input input(path);
  const std::uint64_t file_bytes = input.size();
  std::string text = read_header(input, file_bytes);
  SafetensorsHeader header = detail::parse_safetensors_header(text, file_bytes - kLengthBytes - text.size());
  const std::string digits = take_checksum(header, text);
  if (digits.empty() && options.require_checksum)
    throw Error(fmt::format("it has no \"{}\" in its metadata, which is required of it", detail::kChecksumKey));

  SafetensorsFile file;
  file.has_checksum = !digits.empty();
  file.metadata = std::move(header.metadata);
  const auto is_aside = [&](const std::string& name) { return options.is_aside && options.is_aside(name); };
  for (const SafetensorsHeader::Entry& entry : header.entries) {
    if (!is_aside(entry.layout.name)) file.parameters.add(entry.layout);
  }
  Checksum sum;
  if (file.has_checksum) sum.add(with_length(text));
  const auto fill = [&](std::span<std::byte> bytes) {
    if (file.has_checksum)
      input.read_and_sum(bytes, sum);
    else
      input.read(bytes);
  };
  for (const std::size_t index : header.order_of_data()) {
    const ParameterLayout& layout = header.entries[index].layout;
    if (!is_aside(layout.name)) {
      fill(file.parameters.at(layout.name).bytes());
      continue;
    }
    std::vector<std::byte> bytes(byte_count(layout));
    fill(bytes);
    if (options.take_aside) options.take_aside(layout, bytes);
  }
  if (file.has_checksum && to_hex(sum.value()) != digits)
    throw Error(fmt::format("it is damaged: its checksum should be {}, and is {}", digits, to_hex(sum.value())));
  return file;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const ParameterSet& parameters,
                       const SafetensorsWriteOptions& options) {
  std::string head;
  SafetensorsHeader header;
  try {
    auto metadata = options.metadata;
    if (metadata.contains(std::string(detail::kChecksumKey)))
      throw UsageError(fmt::format("the metadata \"{}\" is for the checksum alone", detail::kChecksumKey));
    if (options.checksum) metadata.emplace(detail::kChecksumKey, detail::kUnsetChecksum);
    header = detail::plan_safetensors(layouts_of(parameters, options.more), std::move(metadata));
    head = with_length(detail::to_text(header));
  } catch (const UsageError& problem) {
    throw UsageError(fmt::format("cannot write {}: {}", path.string(), problem.what()));
  }

  AtomicFile file(path);
  const std::vector<std::size_t> order = header.order_of_data();
  std::vector<std::byte> read;
  const auto bytes_of = [&](std::size_t index) -> std::span<const std::byte> {
    if (index < parameters.size()) return parameters[index].bytes();
    const ArrayOnDemand& array = options.more[index - parameters.size()];
    read.resize(byte_count(array.layout));
    array.read(read);
    return read;
  };
  if (options.checksum) {
    Checksum sum;
    sum.add(head);
    for (const std::size_t index : order) sum.add(bytes_of(index));
    head.replace(detail::find_checksum(head, detail::kUnsetChecksum).value(), detail::kUnsetChecksum.size(),
                 to_hex(sum.value()));
  }
  file.write(head);
  for (const std::size_t index : order) file.write(bytes_of(index));
  file.commit();
}

SafetensorsFile read_safetensors(const std::filesystem::path& path, const SafetensorsReadOptions& options) {
  try {
    return read_file(path, options);
  } catch (const Error& problem) {
    throw Error(fmt::format("cannot read {}: {}", path.string(), problem.what()));
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("cannot read {}: it does not fit into memory", path.string()));
  }
}

}  // namespace tutti
