// Frames over Gloo's connections.
//
// There is one connection for each direction, because Gloo does not send on a connection while it reads from it. A
// message of Gloo's says where in the receiver's memory it goes, so the writer puts each frame into the next of kPlaces
// places there, has no more than that on their way, and the reader tells how many it took. A frame is one message;
// where its body was lent, that went ahead as a message which nobody waits for, since the frame's own comes after it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>
#include <tutti/transport/link.hpp>

namespace tutti::c10d {

class GlooLink final : public Link {
 public:
  // Both without a timeout of Gloo's, which would close them; `keep` holds them.
  GlooLink(std::shared_ptr<void> keep, ::gloo::transport::Pair& out, ::gloo::transport::Pair& in);
  ~GlooLink() override;

  void start(std::function<void()> ring) override;
  std::size_t most_body_bytes() const override { return kMostBodyBytes; }
  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool lend(std::span<const std::byte> head, std::span<const std::byte> body, bool wanted_back) override;
  std::uint64_t lent() const override { return lent_; }
  std::uint64_t returned() override;
  void want_back() override;
  bool stirred() const noexcept override { return !is_closed_.load() && inbox_->arrived.load() != popped_.load(); }
  FrameBytes front() override;
  void pop() override;
  std::optional<std::string> closed() override;
  void close() noexcept override;

 private:
  enum class Kind : std::uint8_t {
    acknowledgement,  // only says how many were taken
    whole,
    head,  // of a frame whose body went ahead
  };
  // Ahead of each frame.
  struct Prefix {
    std::uint64_t acknowledged = 0;  // frames that the writer has taken out of the other direction
    std::uint32_t body_bytes = 0;
    Kind kind = Kind::acknowledgement;
    bool wanted_back = false;  // the writer waits for this to be acknowledged
    std::uint8_t unused[2] = {};
  };
  static_assert(sizeof(Prefix) + kHeadBytes == kBodyAlignment);
  // And behind it: where the connection has ended, Gloo does not tell what had come.
  using Stamp = std::uint64_t;

  static constexpr std::uint64_t kPlaces = 12;
  // For acknowledgements: each side can always send them, however many frames of its own wait for the other's.
  static constexpr std::uint64_t kReserved = 4;
  static constexpr std::size_t kMostBodyBytes = 512 * 1024;
  static constexpr std::size_t kLentBody = 2 * kBodyAlignment;  // in a place, behind the head and its stamp
  static constexpr std::size_t kPlaceBytes = kLentBody + kMostBodyBytes;
  // A body up to this is copied rather than lent: that costs less than a message more.
  static constexpr std::size_t kMostCopiedBytes = 16 * 1024;
  // What Gloo matches messages by.
  static constexpr int kFrames = 1;
  static constexpr int kBodies = 2;
  static constexpr int kNothing = 3;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

  struct Unmap {
    void operator()(std::byte* memory) const;
  };
  using Places = std::unique_ptr<std::byte, Unmap>;

  // What a thread of the link waits on. Gloo cannot call that thread off where the peer died before there was a buffer,
  // so it may be left behind, with this.
  struct Inbox {
    Inbox(std::shared_ptr<void> keep, ::gloo::transport::Pair& in);

    void listen();
    const std::byte* place(std::uint64_t number) const { return places.get() + offset(number); }
    Prefix prefix(std::uint64_t number) const;
    bool is_whole(std::uint64_t number) const;

    const std::shared_ptr<void> keep;
    ::gloo::transport::Pair& pair;
    const Places places;
    const std::unique_ptr<::gloo::transport::Buffer> bodies;
    const std::unique_ptr<::gloo::transport::Buffer> frames;
    // The end counts as one that arrived, so that everybody looks.
    std::atomic<std::uint64_t> arrived{0};
    std::atomic<std::uint64_t> end{kNoEnd};  // how many there were in all, once the connection has closed
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> ring;
    bool has_ended = false;
  };

  static Places make_places();
  static std::size_t offset(std::uint64_t number) { return number % kPlaces * kPlaceBytes; }
  static Stamp stamp(std::uint64_t number) { return 0x7475747469737461U ^ number; }
  bool is_end() const { return popped_.load(std::memory_order_relaxed) == inbox_->end.load(); }

  bool has_room();
  void look_for_acknowledgements();
  void send_frame(Prefix prefix, std::span<const std::byte> head, std::span<const std::byte> body);
  template <typename Call>
  void attempt(Call&& call) noexcept;

  const std::shared_ptr<Inbox> inbox_;
  ::gloo::transport::Pair& out_;
  const Places outgoing_;
  const std::unique_ptr<::gloo::transport::Buffer> sender_;
  const std::unique_ptr<::gloo::transport::Buffer> lender_;
  std::atomic<bool> is_closed_{false};
  bool is_broken_ = false;          // found out on writing
  std::uint64_t written_ = 0;       // frames
  std::uint64_t acknowledged_ = 0;  // of those
  std::array<bool, kPlaces> is_lent_{};
  std::uint64_t lent_ = 0;
  std::uint64_t returned_ = 0;
  std::uint64_t told_ = 0;  // of those popped, what the peer was told
  bool owes_ = false;       // it waits to be told
  std::uint64_t seen_ = 0;  // frames whose acknowledgements were looked at
  std::atomic<std::uint64_t> popped_{0};
  std::thread listener_;
};

}  // namespace tutti::c10d
