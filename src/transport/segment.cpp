#include "segment.hpp"

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tutti {
namespace {

// The secret lies ahead of what users see.
constexpr std::size_t kFrontBytes = 4096;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::uint64_t draw_secret() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::byte* map(int descriptor, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Segment Segment::create(std::size_t bytes) {
  Segment segment;
  segment.mapped_ = kFrontBytes + bytes;
  segment.descriptor_ = ::memfd_create("tutti", MFD_CLOEXEC);
  if (segment.descriptor_ < 0) fail("memfd_create");
  if (::ftruncate(segment.descriptor_, static_cast<off_t>(segment.mapped_)) != 0) fail("ftruncate");
  std::byte* front = map(segment.descriptor_, segment.mapped_);
  if (front == nullptr) fail("mmap");
  segment.data_ = front + kFrontBytes;
  segment.handle_ = {.process = static_cast<std::uint64_t>(::getpid()),
                     .descriptor = static_cast<std::uint64_t>(segment.descriptor_),
                     .bytes = bytes,
                     .secret = draw_secret()};
  std::memcpy(front, &segment.handle_.secret, sizeof segment.handle_.secret);
  return segment;
}

std::optional<Segment> Segment::open(const Handle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return std::nullopt;
  Segment segment;
  segment.descriptor_ = descriptor;
  segment.mapped_ = kFrontBytes + handle.bytes;
  struct stat about {};
  const bool fits = ::fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) &&
                    static_cast<std::uint64_t>(about.st_size) == segment.mapped_;
  if (!fits) return std::nullopt;
  std::byte* front = map(descriptor, segment.mapped_);
  if (front == nullptr) return std::nullopt;
  segment.data_ = front + kFrontBytes;
  segment.handle_ = handle;
  if (std::memcmp(front, &handle.secret, sizeof handle.secret) != 0) return std::nullopt;
  segment.forget_file();
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mapped_(other.mapped_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      handle_(other.handle_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_, other.mapped_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(handle_, other.handle_);
  return *this;
}

Segment::~Segment() {
  forget_file();
  if (data_ != nullptr) ::munmap(data_ - kFrontBytes, mapped_);
}

void Segment::forget_file() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace tutti
