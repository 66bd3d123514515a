// Links between ranks that are threads of one process, so that what processes do can be tested without an engine, and
// under the thread sanitizer.
//
//   auto wires = make_queue_links(3, /*lend=*/true);          // wires[rank] are that rank's links
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

  bool push(std::span<const std::byte> head, std::span<const std::byte> body, bool lent) {
    const std::lock_guard lock(mutex_);
    if (frames_.size() == kMostFrames) return false;
    if (lent) ++lent_;
    if (closed_.load()) {
      returned_ = lent_;
      return true;
    }
    frames_.emplace_back(head, body, lent);
    came_.fetch_add(1);
    if (reader_) reader_();
    return true;
  }

  FrameBytes front() {
    const std::lock_guard lock(mutex_);
    return frames_.empty() ? FrameBytes{} : frames_.front().bytes();
  }

  void pop() {
    const std::lock_guard lock(mutex_);
    if (frames_.front().is_lent()) ++returned_;
    frames_.pop_front();
    taken_.fetch_add(1);
    if (writer_) writer_();  // there is room again
  }

  std::uint64_t lent() const {
    const std::lock_guard lock(mutex_);
    return lent_;
  }
  std::uint64_t returned() const {
    const std::lock_guard lock(mutex_);
    return returned_;
  }

  bool has_news() const noexcept { return came_.load() != taken_.load() || (closed_.load() && !told_.load()); }

  // Nothing more goes in; what is in it can be read still, unless it was lent.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_.store(true);
    writer_ = nullptr;
    for (Kept& frame : frames_) frame.keep_body();
    returned_ = lent_;
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
  // A head, and a body that is aligned as Link wants it, or that lies where it was.
  class Kept {
   public:
    Kept(std::span<const std::byte> head, std::span<const std::byte> body, bool lent)
        : head_(head.begin(), head.end()), body_(body), is_lent_(lent) {
      if (!lent) keep_body();
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    bool is_lent() const { return is_lent_; }
    FrameBytes bytes() const { return {head_, body_}; }

    void keep_body() {
      if (!memory_.empty() || body_.empty()) return;
      memory_.resize(body_.size() + Link::kBodyAlignment);
      const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
      const std::size_t start = (Link::kBodyAlignment - address % Link::kBodyAlignment) % Link::kBodyAlignment;
      std::memcpy(memory_.data() + start, body_.data(), body_.size());
      body_ = std::span(memory_).subspan(start, body_.size());
      is_lent_ = false;
    }

   private:
    std::vector<std::byte> head_;
    std::span<const std::byte> body_;
    std::vector<std::byte> memory_;
    bool is_lent_;
  };

  mutable std::mutex mutex_;
  std::deque<Kept> frames_;
  std::uint64_t lent_ = 0;
  std::uint64_t returned_ = 0;
  std::function<void()> reader_;
  std::function<void()> writer_;
  std::atomic<std::uint64_t> came_{0};
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> told_{false};
};

class QueueLink final : public Link {
 public:
  QueueLink(std::shared_ptr<FrameQueue> outgoing, std::shared_ptr<FrameQueue> incoming, bool lends)
      : outgoing_(std::move(outgoing)), incoming_(std::move(incoming)), lends_(lends) {}
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
    return outgoing_->push(head, body, /*lent=*/false);
  }
  bool lend(std::span<const std::byte> head, std::span<const std::byte> body, bool) override {
    return outgoing_->push(head, body, lends_);
  }
  std::uint64_t lent() const override { return outgoing_->lent(); }
  std::uint64_t returned() override { return outgoing_->returned(); }
  bool stirred() const noexcept override { return incoming_->has_news(); }
  FrameBytes front() override { return incoming_->front(); }
  void pop() override { incoming_->pop(); }
  std::optional<std::string> closed() override {
    if (!incoming_->is_closed()) return std::nullopt;
    return "has died: its connection closed";
  }
  void close() noexcept override { outgoing_->close(); }

 private:
  const std::shared_ptr<FrameQueue> outgoing_;
  const std::shared_ptr<FrameQueue> incoming_;
  const bool lends_;
};

// By rank, and for each by peer; none to itself.
inline std::vector<std::vector<std::unique_ptr<Link>>> make_queue_links(int ranks, bool lend) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<std::unique_ptr<Link>>> links(count);
  for (auto& of_rank : links) of_rank.resize(count);
  for (std::size_t one = 0; one < count; ++one) {
    for (std::size_t other = one + 1; other < count; ++other) {
      const auto there = std::make_shared<FrameQueue>();
      const auto back = std::make_shared<FrameQueue>();
      links[one][other] = std::make_unique<QueueLink>(there, back, lend);
      links[other][one] = std::make_unique<QueueLink>(back, there, lend);
    }
  }
  return links;
}

}  // namespace tutti::testing
