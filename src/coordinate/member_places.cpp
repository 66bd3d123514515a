#include "member_places.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// What the threads share with whoever asks.
struct MemberPlaces::Shared {
  struct Work {
    MemberTask task;
    const MemberPlace* place = nullptr;
    Clock::time_point went_on = {};
    bool is_cancelled = false;  // it ends at its next go_on(), and nobody hears of it
  };
  struct Worker {
    std::thread thread;
    const MemberPlace* place = nullptr;
    bool has_ended = false;
  };

  explicit Shared(MemberPlacesOptions its) : options(std::move(its)) {}

  const MemberPlacesOptions options;
  std::mutex mutex;
  std::condition_variable has_work;
  std::condition_variable has_done;
  std::deque<MemberTask> waiting;
  std::list<Work> under_way;
  std::deque<MemberReply> done;
  std::exception_ptr problem;  // the first that a place has thrown
  bool is_ending = false;
  std::list<Worker> workers;

  void go_on(Work& work) {
    const std::lock_guard lock(mutex);
    work.went_on = Clock::now();
    if (work.is_cancelled) throw Error("the run was to end");
  }

  static void serve(const std::shared_ptr<Shared>& shared, Worker& worker) {
    const MemberPlace& place = *worker.place;
    try {
      if (place.prepare) place.prepare();
      while (shared->serve_once(place)) {
      }
    } catch (...) {
      const std::lock_guard lock(shared->mutex);
      if (!shared->problem) shared->problem = std::current_exception();
    }
    const std::lock_guard lock(shared->mutex);
    worker.has_ended = true;
    shared->has_work.notify_all();
    shared->has_done.notify_all();
  }

  // Whether there may be more to do.
  bool serve_once(const MemberPlace& place) {
    std::unique_lock lock(mutex);
    const auto is_called = [&] { return is_ending || problem || !waiting.empty(); };
    if (!has_work.wait_for(lock, options.idle_every, is_called)) {
      lock.unlock();
      if (place.idle) place.idle();
      return true;
    }
    if (is_ending || problem) return false;
    const auto work = under_way.insert(under_way.end(),
                                       {.task = std::move(waiting.front()), .place = &place, .went_on = Clock::now()});
    waiting.pop_front();
    work->task.go_on = [this, work] { go_on(*work); };
    lock.unlock();
    MemberReply reply;
    std::exception_ptr failure;
    try {
      reply = place.carry_out(work->task);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    const bool is_wanted = !work->is_cancelled;
    under_way.erase(work);
    if (failure) std::rethrow_exception(failure);
    if (is_wanted) done.push_back(std::move(reply));
    has_done.notify_all();
    return true;
  }

  void cancel() {
    waiting.clear();
    done.clear();
    for (Work& work : under_way) work.is_cancelled = true;
  }

  bool is_late(const Work& work, Clock::time_point now) const {
    return !work.place->comes_back && now - work.went_on > options.deadline;
  }

  // Whoever has not gone on for too long.
  const Work* late(Clock::time_point now) const {
    const auto found = std::ranges::find_if(under_way, [&](const Work& work) { return is_late(work, now); });
    return found == under_way.end() ? nullptr : &*found;
  }

  // Or hangs: its member has not gone on for too long.
  bool has_ended(const Worker& worker) const {
    const Clock::time_point now = Clock::now();
    return worker.has_ended || std::ranges::any_of(under_way, [&](const Work& work) {
             return work.place == worker.place && is_late(work, now);
           });
  }

  // Returns when all threads have ended, or are left to themselves.
  void end_threads() {
    constexpr Duration kLook = std::chrono::milliseconds(10);  // nobody tells that time has passed
    std::unique_lock lock(mutex);
    is_ending = true;
    cancel();
    has_work.notify_all();
    for (Worker& worker : workers) {
      while (!has_ended(worker)) has_done.wait_for(lock, kLook);
      if (!worker.thread.joinable()) continue;
      if (!worker.has_ended) {
        worker.thread.detach();
        continue;
      }
      lock.unlock();
      worker.thread.join();
      lock.lock();
    }
  }
};

MemberPlaces::MemberPlaces(MemberPlacesOptions options) : shared_(std::make_shared<Shared>(std::move(options))) {
  for (const MemberPlace& place : shared_->options.places) {
    Shared::Worker& worker = shared_->workers.emplace_back();
    worker.place = &place;
    worker.thread = std::thread([shared = shared_, &worker] { Shared::serve(shared, worker); });
  }
}

MemberPlaces::~MemberPlaces() { shared_->end_threads(); }

std::int64_t MemberPlaces::places() const { return std::ssize(shared_->options.places); }

void MemberPlaces::begin(MemberTask task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->waiting.push_back(std::move(task));
  shared_->has_work.notify_one();
}

std::optional<MemberReply> MemberPlaces::next(Duration wait) {
  const Clock::time_point end = Clock::now() + wait;
  std::unique_lock lock(shared_->mutex);
  while (shared_->done.empty()) {
    if (shared_->problem) std::rethrow_exception(shared_->problem);
    if (shared_->waiting.empty() && shared_->under_way.empty()) return std::nullopt;
    const Clock::time_point now = Clock::now();
    if (const Shared::Work* late = shared_->late(now))
      throw Error(
          fmt::format("member {} has not gone on within {}", late->task.member, to_string(shared_->options.deadline)));
    if (now >= end) return std::nullopt;
    // To look at the deadline again, too.
    shared_->has_done.wait_until(lock, std::min(end, now + shared_->options.deadline));
  }
  MemberReply reply = std::move(shared_->done.front());
  shared_->done.pop_front();
  return reply;
}

void MemberPlaces::cancel() {
  const std::lock_guard lock(shared_->mutex);
  shared_->cancel();
}

void MemberPlaces::end() {
  shared_->end_threads();
  const std::lock_guard lock(shared_->mutex);
  if (shared_->problem) std::rethrow_exception(shared_->problem);
}

MemberPlace own_place(const MemberThreadsOptions& options) {
  return {.carry_out = [make = options.make](const MemberTask& task) { return carry_out(make, task); },
          .prepare = options.prepare_thread};
}

}  // namespace tutti::detail
