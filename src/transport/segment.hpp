// Memory that processes of one host share. It has no name anywhere, so whatever becomes of the processes, the system
// takes it back when the last of them is gone.
//
//   Segment mine = Segment::create(bytes);                       // zeros
//   std::optional<Segment> same = Segment::open(mine.handle());  // in another process of this host
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tutti {

class Segment {
 public:
  // Where another process finds it, as long as its maker has not called `forget_file`.
  struct Handle {
    std::uint64_t process = 0;
    std::uint64_t descriptor = 0;
    std::uint64_t bytes = 0;
    std::uint64_t secret = 0;  // also in the memory itself: another host may have a process of that number
  };

  // What the system says where there is no memory.
  static Segment create(std::size_t bytes);
  // None where this process cannot see that one's memory: another host, a container, another user.
  static std::optional<Segment> open(const Handle& handle);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  Handle handle() const { return handle_; }
  // Nobody can open it any more.
  void forget_file() noexcept;

 private:
  Segment() = default;

  std::byte* data_ = nullptr;
  std::size_t mapped_ = 0;
  int descriptor_ = -1;
  Handle handle_;
};

}  // namespace tutti
