#include <tutti/data/npz.hpp>

#include <zlib.h>

#include <algorithm>
#include <ostream>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

constexpr std::uint32_t kIn64 = 0xffffffff;  // in a field of 32 bits: look among those of zip64
constexpr std::uint16_t kZip64Id = 1;
constexpr std::uint16_t kUtf8Names = 1 << 11;
constexpr std::uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980, the first that zip can tell
constexpr std::size_t kMostEntries = 0xffff;

// Fields of a zip file, little-endian, one after the other.
class ZipFields {
 public:
  ZipFields& u16(std::uint64_t value) { return put(value, 2); }
  ZipFields& u32(std::uint64_t value) { return put(value, 4); }
  ZipFields& u64(std::uint64_t value) { return put(value, 8); }
  ZipFields& text(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  ZipFields& put(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }

  std::string bytes_;
};

// The extra fields of an entry: those of its numbers that do not fit elsewhere.
std::string zip64_extra(std::span<const std::uint64_t> numbers) {
  if (numbers.empty()) return {};
  ZipFields extra;
  extra.u16(kZip64Id).u16(8 * numbers.size());
  for (const std::uint64_t number : numbers) extra.u64(number);
  return extra.bytes();
}

// zlib counts in 32 bits.
std::uint32_t crc_of(std::uint32_t crc, std::span<const std::byte> bytes) {
  constexpr std::size_t kMost = 1 << 30;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kMost, bytes.size()))) {
    const auto part = static_cast<uInt>(std::min(kMost, bytes.size()));
    crc = static_cast<std::uint32_t>(crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), part));
  }
  return crc;
}

}  // namespace

NpzWriter::NpzWriter(std::ostream& stream, NpzOptions options) : stream_(stream), options_(options) {}

void NpzWriter::write(const std::string& bytes) {
  stream_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  written_ += bytes.size();
  if (!stream_) throw Error("an archive of arrays could not be written");
}

void NpzWriter::add(const std::string& name, const NpyView& array) {
  if (is_finished_) throw UsageError("the archive is finished: nothing can be added to it");
  std::string file = name + ".npy";
  constexpr std::size_t kLongestName = 0xffff;
  if (name.empty() || file.size() > kLongestName) throw UsageError(fmt::format("'{}' names no array", name));
  if (std::ranges::find(entries_, file, &Entry::name) != entries_.end())
    throw UsageError(fmt::format("the array '{}' is there already", name));
  const std::string header = npy_header(array);
  const auto header_bytes = std::as_bytes(std::span(header));
  Entry entry{.name = std::move(file),
              .crc = crc_of(crc_of(0, header_bytes), array.bytes),
              .size = header.size() + array.bytes.size(),
              .place = written_};
  const bool is_wide = entry.size >= options_.zip64_from;
  const std::uint64_t size = is_wide ? kIn64 : entry.size;
  const std::vector<std::uint64_t> wide_sizes(is_wide ? 2 : 0, entry.size);  // as it is, and packed
  const std::string extra = zip64_extra(wide_sizes);
  ZipFields local;
  local.u32(0x04034b50).u16(is_wide ? 45 : 20).u16(kUtf8Names).u16(0 /* not packed */).u16(0).u16(kFirstDay);
  local.u32(entry.crc).u32(size).u32(size).u16(entry.name.size()).u16(extra.size()).text(entry.name).text(extra);
  write(local.bytes());
  write_npy(stream_, array);
  written_ += entry.size;
  entries_.push_back(std::move(entry));
}

void NpzWriter::finish() {
  if (is_finished_) return;
  const std::uint64_t list = written_;
  for (const Entry& entry : entries_) {
    const bool is_wide = entry.size >= options_.zip64_from;
    const bool is_far = entry.place >= options_.zip64_from;
    std::vector<std::uint64_t> wide(is_wide ? 2 : 0, entry.size);
    if (is_far) wide.push_back(entry.place);
    const std::uint64_t size = is_wide ? kIn64 : entry.size;
    const std::string extra = zip64_extra(wide);
    constexpr std::uint32_t kPlainFile = 0100644u << 16;  // who unpacks it may read and write it
    ZipFields central;
    central.u32(0x02014b50).u16(3 << 8 | 45).u16(wide.empty() ? 20 : 45).u16(kUtf8Names).u16(0).u16(0).u16(kFirstDay);
    central.u32(entry.crc).u32(size).u32(size).u16(entry.name.size()).u16(extra.size()).u16(0 /* comment */);
    central.u16(0 /* disk */).u16(0).u32(kPlainFile).u32(is_far ? kIn64 : entry.place).text(entry.name).text(extra);
    write(central.bytes());
  }
  const std::uint64_t end = written_;
  const std::uint64_t count = entries_.size();
  const bool is_wide = end >= options_.zip64_from || count >= kMostEntries;
  if (is_wide) {
    ZipFields wide;
    wide.u32(0x06064b50).u64(44).u16(3 << 8 | 45).u16(45).u32(0).u32(0).u64(count).u64(count).u64(end - list).u64(list);
    wide.u32(0x07064b50).u32(0).u64(end).u32(1);
    write(wide.bytes());
  }
  const std::uint64_t told = is_wide ? kMostEntries : count;
  ZipFields last;
  last.u32(0x06054b50).u16(0).u16(0).u16(told).u16(told);
  last.u32(is_wide ? kIn64 : end - list).u32(is_wide ? kIn64 : list).u16(0 /* comment */);
  write(last.bytes());
  stream_.flush();
  if (!stream_) throw Error("an archive of arrays could not be written");
  is_finished_ = true;
}

}  // namespace tutti
