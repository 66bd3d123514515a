#include <tutti/data/idx.hpp>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// Two zeros, the type 8 (bytes), how many dimensions, their sizes, and the values.
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    std::error_code problem;
    if (!file_ || std::filesystem::is_directory(path, problem))
      throw UsageError(fmt::format("cannot read {}", path.string()));
    constexpr unsigned kBuffer = 1 << 18;  // zlib's own is for small files
    gzbuffer(file_.get(), kBuffer);
    const std::array<std::uint8_t, 4> start = word();
    if (start[0] != 0 || start[1] != 0 || start[2] != 8 || start[3] < 1 || start[3] > 4)
      throw UsageError(fmt::format("{} is no IDX file of bytes", path.string()));
    for (int i = 0; i < start[3]; ++i) {
      std::uint32_t size = 0;
      for (const std::uint8_t byte : word()) size = size << 8 | byte;
      shape_.push_back(size);
    }
    constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;
    const std::optional<std::int64_t> count = element_count(shape_);
    if (!count || *count > kMostBytes)
      throw UsageError(fmt::format("{} says that it has {} values", path.string(), to_string(shape_)));
  }

  const Shape& shape() const { return shape_; }

  void read(void* place, std::size_t bytes) {
    constexpr std::size_t kMost = 1 << 30;
    for (std::size_t done = 0; done < bytes;) {
      const auto part = static_cast<unsigned>(std::min(kMost, bytes - done));
      if (gzread(file_.get(), static_cast<std::byte*>(place) + done, part) != static_cast<int>(part))
        throw UsageError(fmt::format("{} ends early, or is damaged", path_.string()));
      done += part;
    }
  }

  // To read up to the end is also to compare the check sum that gzip keeps.
  void expect_end() {
    std::uint8_t byte = 0;
    const int more = gzread(file_.get(), &byte, 1);
    if (more > 0) throw UsageError(fmt::format("{} goes on after its {} values", path_.string(), to_string(shape_)));
    if (more < 0) throw UsageError(fmt::format("{} is damaged", path_.string()));
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  std::array<std::uint8_t, 4> word() {
    std::array<std::uint8_t, 4> bytes{};
    read(bytes.data(), bytes.size());
    return bytes;
  }

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Close> file_;
  Shape shape_;
};

}  // namespace

torch::Tensor read_idx(const std::filesystem::path& path) {
  IdxFile file(path);
  torch::Tensor values = torch::empty(file.shape(), torch::kUInt8);
  file.read(values.data_ptr(), values.nbytes());
  file.expect_end();
  return values;
}

Shape read_idx_shape(const std::filesystem::path& path) { return IdxFile(path).shape(); }

}  // namespace tutti
