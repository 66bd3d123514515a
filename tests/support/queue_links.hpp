// Links between ranks that are threads of one process, so that what processes do can be tested without an engine, and
// under the thread sanitizer.
//
//   auto wires = make_queue_links(3);                         // wires[rank] are that rank's links
//   join_processes({.rank = Rank{0}, .wires = std::move(wires[0])}, deadline);
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tutti/transport/link.hpp>

namespace tutti::testing {

// Frames one way. Bounded, as every link is. It rings with the lock held: whoever takes its bell away can then go.
class FrameQueue {
 public:
  static constexpr std::size_t kMostFrames = 16;
  static constexpr std::size_t kMostBodyBytes = 64 * 1024;

  bool push(std::span<const std::byte> head, std::span<const std::byte> body) {
    const std::lock_guard lock(mutex_);
    if (frames_.size() == kMostFrames) return false;
    frames_.emplace_back(head, body);
    came_.fetch_add(1);
    if (reader_) reader_();
    return true;
  }

  std::span<const std::byte> front() {
    const std::lock_guard lock(mutex_);
    return frames_.empty() ? std::span<const std::byte>{} : frames_.front().bytes();
  }

  void pop() {
    const std::lock_guard lock(mutex_);
    frames_.pop_front();
    taken_.fetch_add(1);
    if (writer_) writer_();  // there is room again
  }

  bool has_news() const noexcept { return came_.load() != taken_.load() || (closed_.load() && !told_.load()); }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_.store(true);
    writer_ = nullptr;
    if (reader_) reader_();
  }
  bool is_closed() {
    const std::lock_guard lock(mutex_);
    const bool closed = closed_.load() && frames_.empty();
    if (closed) told_.store(true);
    return closed;
  }

  void set_reader(std::function<void()> ring) {
    const std::lock_guard lock(mutex_);
    reader_ = std::move(ring);
  }
  void set_writer(std::function<void()> ring) {
    const std::lock_guard lock(mutex_);
    writer_ = std::move(ring);
  }

 private:
  // Laid out so that the body is aligned as Link wants it.
  class Kept {
   public:
    Kept(std::span<const std::byte> head, std::span<const std::byte> body)
        : memory_(Link::kBodyAlignment + head.size() + Link::kBodyAlignment + body.size()) {
      auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + Link::kHeadBytes;
      start_ = (address + Link::kBodyAlignment - 1) / Link::kBodyAlignment * Link::kBodyAlignment -
               reinterpret_cast<std::uintptr_t>(memory_.data()) - Link::kHeadBytes;
      std::memcpy(memory_.data() + start_, head.data(), head.size());
      if (!body.empty()) std::memcpy(memory_.data() + start_ + head.size(), body.data(), body.size());
      length_ = head.size() + body.size();
    }
    std::span<const std::byte> bytes() const { return std::span(memory_).subspan(start_, length_); }

   private:
    std::vector<std::byte> memory_;
    std::size_t start_ = 0;
    std::size_t length_ = 0;
  };

  std::mutex mutex_;
  std::deque<Kept> frames_;
  std::function<void()> reader_;
  std::function<void()> writer_;
  std::atomic<std::uint64_t> came_{0};
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> told_{false};
};

class QueueLink final : public Link {
 public:
  QueueLink(std::shared_ptr<FrameQueue> outgoing, std::shared_ptr<FrameQueue> incoming)
      : outgoing_(std::move(outgoing)), incoming_(std::move(incoming)) {}
  ~QueueLink() override {
    incoming_->set_reader(nullptr);
    outgoing_->close();
  }

  void start(std::function<void()> ring) override {
    incoming_->set_reader(ring);
    outgoing_->set_writer(std::move(ring));
  }
  std::size_t most_body_bytes() const override { return FrameQueue::kMostBodyBytes; }
  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override {
    return outgoing_->push(head, body);
  }
  bool stirred() const noexcept override { return incoming_->has_news(); }
  std::span<const std::byte> front() override { return incoming_->front(); }
  void pop() override { incoming_->pop(); }
  std::optional<std::string> closed() override {
    if (!incoming_->is_closed()) return std::nullopt;
    return "has died: its connection closed";
  }

 private:
  const std::shared_ptr<FrameQueue> outgoing_;
  const std::shared_ptr<FrameQueue> incoming_;
};

// By rank, and for each by peer; none to itself.
inline std::vector<std::vector<std::unique_ptr<Link>>> make_queue_links(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<std::unique_ptr<Link>>> links(count);
  for (auto& of_rank : links) of_rank.resize(count);
  for (std::size_t one = 0; one < count; ++one) {
    for (std::size_t other = one + 1; other < count; ++other) {
      const auto there = std::make_shared<FrameQueue>();
      const auto back = std::make_shared<FrameQueue>();
      links[one][other] = std::make_unique<QueueLink>(there, back);
      links[other][one] = std::make_unique<QueueLink>(back, there);
    }
  }
  return links;
}

}  // namespace tutti::testing
