#include <tutti/data/npy.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

static_assert(std::endian::native == std::endian::little, "values are moved between memory and files as they are");

struct NpyTypeInfo {
  NpyType type;
  std::string_view name;
  std::string_view code;  // as the header has it
  std::size_t size;
};

constexpr std::array kNpyTypes{
    NpyTypeInfo{NpyType::float32, "float32", "<f4", 4}, NpyTypeInfo{NpyType::float64, "float64", "<f8", 8},
    NpyTypeInfo{NpyType::int32, "int32", "<i4", 4},     NpyTypeInfo{NpyType::int64, "int64", "<i8", 8},
    NpyTypeInfo{NpyType::uint8, "uint8", "|u1", 1},     NpyTypeInfo{NpyType::boolean, "bool", "|b1", 1}};

const NpyTypeInfo& info_of(NpyType type) { return *std::ranges::find(kNpyTypes, type, &NpyTypeInfo::type); }

constexpr std::string_view kNpyMagic = "\x93NUMPY";

// The header is a dictionary as Python writes it: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyDictionary {
 public:
  explicit NpyDictionary(std::string_view text) : rest_(text) {}

  struct Content {
    std::string descr;
    bool fortran_order = false;
    Shape shape;
  };

  // Nothing where it is no such dictionary.
  std::optional<Content> read() {
    Content content;
    int known = 0;
    if (!skip("{")) return std::nullopt;
    while (!skip("}")) {
      const std::optional<std::string> key = quoted();
      if (!key || !skip(":")) return std::nullopt;
      const bool is_read = *key == "descr"           ? read_descr(content.descr)
                           : *key == "fortran_order" ? read_boolean(content.fortran_order)
                                                     : *key == "shape" && read_shape(content.shape);
      if (!is_read) return std::nullopt;
      ++known;
      skip(",");
    }
    if (known != 3) return std::nullopt;
    return content;
  }

 private:
  bool skip(std::string_view token) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string> quoted() {
    const char quote = skip("'") ? '\'' : '"';
    if (quote == '"' && !skip("\"")) return std::nullopt;
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  // A list stands for a structure: told by what it starts with.
  bool read_descr(std::string& descr) {
    if (const std::optional<std::string> text = quoted()) {
      descr = *text;
      return true;
    }
    if (!skip("[")) return false;
    descr = "a structure";
    int depth = 1;
    while (depth > 0 && !rest_.empty()) {
      depth += rest_.front() == '[' ? 1 : rest_.front() == ']' ? -1 : 0;
      rest_.remove_prefix(1);
    }
    return depth == 0;
  }

  bool read_boolean(bool& value) {
    value = skip("True");
    return value || skip("False");
  }

  bool read_shape(Shape& shape) {
    if (!skip("(")) return false;
    while (!skip(")")) {
      std::int64_t size = 0;
      const auto [end, problem] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (problem != std::errc() || size < 0) return false;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape.push_back(size);
      if (!skip(",") && !rest_.starts_with(")")) return false;
    }
    return true;
  }

  std::string_view rest_;
};

// An open file, whose values come next.
struct NpyFile {
  std::ifstream stream;
  NpyType type = NpyType::float32;
  Shape shape;
  bool fortran_order = false;
  std::size_t bytes = 0;
};

NpyFile open_npy(const std::filesystem::path& path) {
  const auto error = [&](std::string_view what) { return UsageError(fmt::format("{}: {}", path.string(), what)); };
  NpyFile file;
  file.stream.open(path, std::ios::binary);
  std::error_code problem;
  if (!file.stream || !std::filesystem::is_regular_file(path, problem))
    throw UsageError(fmt::format("cannot read {}", path.string()));
  const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path, problem));

  const auto read = [&](std::size_t count) {
    std::string bytes(count, '\0');
    if (!file.stream.read(bytes.data(), static_cast<std::streamsize>(count))) throw error("the file ends early");
    return bytes;
  };
  std::string start(kNpyMagic.size() + 2, '\0');
  file.stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (!start.starts_with(kNpyMagic)) throw error("this is no .npy file");
  if (!file.stream) throw error("the file ends early");
  const int version = start[kNpyMagic.size()];
  if (version < 1 || version > 3) throw error(fmt::format("expected a file of version 1 to 3, found {}", version));
  const std::string length_bytes = read(version == 1 ? 2 : 4);
  std::uint32_t length = 0;
  std::memcpy(&length, length_bytes.data(), length_bytes.size());
  const std::uint64_t before = start.size() + length_bytes.size() + std::uint64_t{length};
  if (before > size) throw error("the file ends early");
  const std::string header = read(length);
  const std::optional<NpyDictionary::Content> content = NpyDictionary(header).read();
  if (!content) throw error("its header says nothing of a type, an order and a shape");

  const auto* type = std::ranges::find(kNpyTypes, content->descr, &NpyTypeInfo::code);
  if (type == kNpyTypes.end()) {
    throw error(fmt::format("expected values of float32, float64, int32, int64, uint8 or bool, little-endian, found {}",
                            content->descr));
  }
  const std::optional<std::int64_t> count = element_count(content->shape);
  if (!count) throw error(fmt::format("it says that it has {} values", to_string(content->shape)));
  file.type = type->type;
  file.shape = content->shape;
  file.fortran_order = content->fortran_order;
  file.bytes = static_cast<std::size_t>(*count) * type->size;
  if (size - before != file.bytes) {
    throw error(fmt::format("expected {} bytes for {} of {}, found {}", file.bytes, to_string(file.shape), type->name,
                            size - before));
  }
  return file;
}

// Values whose first index runs quickest, in C order.
std::vector<std::byte> in_c_order(const std::vector<std::byte>& from, const Shape& shape, std::size_t value_size) {
  std::vector<std::byte> to(from.size());
  std::vector<std::size_t> strides(shape.size());
  std::size_t stride = value_size;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    strides[i] = stride;
    stride *= static_cast<std::size_t>(shape[i]);
  }
  Shape index(shape.size(), 0);
  std::size_t source = 0;
  for (std::size_t at = 0; at < to.size(); at += value_size) {
    std::memcpy(&to[at], &from[source], value_size);
    for (std::size_t i = shape.size(); i-- > 0;) {
      source += strides[i];
      if (++index[i] < shape[i]) break;
      source -= strides[i] * static_cast<std::size_t>(shape[i]);
      index[i] = 0;
    }
  }
  return to;
}

}  // namespace

std::string_view to_string(NpyType type) { return info_of(type).name; }
std::size_t size_of(NpyType type) { return info_of(type).size; }

NpyArray read_npy(const std::filesystem::path& path) {
  NpyFile file = open_npy(path);
  NpyArray array{.type = file.type, .shape = file.shape, .bytes = std::vector<std::byte>(file.bytes)};
  file.stream.read(reinterpret_cast<char*>(array.bytes.data()), static_cast<std::streamsize>(file.bytes));
  if (!file.stream) throw UsageError(fmt::format("{} ends early while it is read", path.string()));
  if (file.fortran_order && array.shape.size() > 1)
    array.bytes = in_c_order(array.bytes, array.shape, size_of(array.type));
  return array;
}

NpyArray read_npy_header(const std::filesystem::path& path) {
  NpyFile file = open_npy(path);
  return {.type = file.type, .shape = std::move(file.shape)};
}

std::string npy_header(const NpyView& array) {
  const std::optional<std::int64_t> count = element_count(array.shape);
  if (!count || static_cast<std::size_t>(*count) * size_of(array.type) != array.bytes.size()) {
    throw UsageError(fmt::format("{} bytes are no array of the shape {} of {}", array.bytes.size(),
                                 to_string(array.shape), to_string(array.type)));
  }
  std::string shape;
  for (const std::int64_t size : array.shape) shape += fmt::format("{}, ", size);
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);  // (3,) and (3, 4), as Python writes them
  if (array.shape.size() == 1) shape.pop_back();
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", info_of(array.type).code, shape);
  // Values begin at a multiple of 64 bytes; a line end is the last before them.
  const auto padded_to_64 = [&](std::size_t before) {
    dictionary.append(63 - (before + dictionary.size()) % 64, ' ');
    dictionary += '\n';
    return dictionary.size();
  };
  std::string header(kNpyMagic);
  constexpr std::size_t kMostOfVersion1 = 65535;
  if (dictionary.size() + 64 <= kMostOfVersion1) {
    const auto length = static_cast<std::uint16_t>(padded_to_64(10));
    header += {'\1', '\0', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  } else {
    const auto length = static_cast<std::uint32_t>(padded_to_64(12));
    header += {'\2', '\0'};
    for (int shift = 0; shift < 32; shift += 8) header += static_cast<char>(length >> shift & 0xff);
  }
  return header + dictionary;
}

void write_npy(std::ostream& stream, const NpyView& array) {
  const std::string header = npy_header(array);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));
  stream.write(reinterpret_cast<const char*>(array.bytes.data()), static_cast<std::streamsize>(array.bytes.size()));
  if (!stream) throw Error("an array could not be written");
}

}  // namespace tutti
