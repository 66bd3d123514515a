#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "stage_channel.hpp"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

// What has come for one worker.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, std::uint64_t>, std::deque<torch::Tensor>> tensors;  // by sender and tag
  std::optional<Failure> failure;
  std::optional<Awaited> awaited;  // by the worker, at the moment

  std::optional<torch::Tensor> take(int from, std::uint64_t tag) {
    const auto found = tensors.find({from, tag});
    if (found == tensors.end()) return std::nullopt;
    torch::Tensor tensor = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) tensors.erase(found);
    return tensor;
  }
};

class ThreadChannel final : public StageChannel {
 public:
  ThreadChannel(std::shared_ptr<std::vector<Mailbox>> boxes, int worker) : boxes_(std::move(boxes)), worker_(worker) {}

  void send(int to, std::uint64_t tag, const torch::Tensor& tensor) override {
    Mailbox& box = (*boxes_)[static_cast<std::size_t>(to)];
    {
      const std::lock_guard lock(box.mutex);
      box.tensors[{worker_, tag}].push_back(tensor);
    }
    box.changed.notify_one();
  }

  torch::Tensor receive(const Awaited& what, Deadline deadline) override {
    Mailbox& mine = (*boxes_)[static_cast<std::size_t>(worker_)];
    // To sleep and to be woken takes longer than most waits of a pipeline that is balanced.
    constexpr std::chrono::microseconds kAwake{50};
    const Clock::time_point asleep = Clock::now() + kAwake;
    std::unique_lock lock(mine.mutex);
    while (true) {
      if (std::optional<torch::Tensor> tensor = mine.take(what.from, what.tag)) {
        mine.awaited.reset();
        return *std::move(tensor);
      }
      if (mine.failure) throw PeerError(*mine.failure);
      if (Clock::now() < asleep) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      } else if (deadline.passed()) {
        throw PeerError({.kind = FailureKind::late, .ranks = {Rank{what.from}}, .message = "nothing came in time"});
      } else {
        mine.awaited = what;
        mine.changed.wait_for(lock, deadline.remaining());
      }
    }
  }

  Wait last_in_line(const Awaited& what) const override {
    Wait last{worker_, what};
    for (std::size_t i = 0; i < boxes_->size(); ++i) {  // they may wait for each other
      Mailbox& next = (*boxes_)[static_cast<std::size_t>(last.what.from)];
      const std::lock_guard lock(next.mutex);
      if (!next.awaited) break;
      last = {last.what.from, *next.awaited};
    }
    return last;
  }

  void release(int, std::uint64_t, Deadline) override {}
  void give_up() noexcept override {}

  void finish(Deadline) override {}

  void abort(const Failure& failure) noexcept override {
    for (Mailbox& box : *boxes_) {
      {
        const std::lock_guard lock(box.mutex);
        if (!box.failure) box.failure = failure;
      }
      box.changed.notify_all();
    }
  }

 private:
  std::shared_ptr<std::vector<Mailbox>> boxes_;  // by worker
  int worker_;
};

}  // namespace

std::vector<std::unique_ptr<StageChannel>> make_thread_channels(int workers) {
  const auto boxes = std::make_shared<std::vector<Mailbox>>(static_cast<std::size_t>(workers));
  std::vector<std::unique_ptr<StageChannel>> channels;
  for (int worker = 0; worker < workers; ++worker) channels.push_back(std::make_unique<ThreadChannel>(boxes, worker));
  return channels;
}

}  // namespace tutti::detail
