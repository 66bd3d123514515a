#include <tutti/coordinate/member_pool.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

std::string first_line(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.empty() ? "it failed, and did not say why" : std::string(line);
}

}  // namespace

MemberReply carry_out(const MakeMember& make, const MemberTask& task) {
  MemberReply reply{.member = task.member, .generation = task.generation};
  try {
    const std::unique_ptr<PopulationMember> member = make(task);
    if (!member) throw UsageError("no member was made");
    if (task.state) member->load(*task.state);
    member->train(task);
    task.go_on();
    reply.score = member->evaluate();
    task.go_on();
    reply.state = member->save();
  } catch (const std::exception& error) {
    reply.failure = first_line(error.what());
  } catch (...) {
    reply.failure = first_line("");
  }
  return reply;
}

// What the threads share with whoever asks.
struct MemberThreads::Shared {
  struct Work {
    MemberTask task;
    Clock::time_point went_on = {};
  };

  explicit Shared(MemberThreadsOptions its) : options(std::move(its)) {}

  const MemberThreadsOptions options;
  std::mutex mutex;
  std::condition_variable has_work;
  std::condition_variable has_done;
  std::deque<MemberTask> waiting;
  std::list<Work> under_way;
  std::deque<MemberReply> done;
  std::string problem;  // of a thread that could not be prepared
  bool is_cancelled = false;
  bool is_ending = false;
  bool is_late = false;  // somebody has missed the deadline
  int working = 0;
  std::vector<std::thread> threads;

  void go_on(Work& work) {
    const std::lock_guard lock(mutex);
    work.went_on = Clock::now();
    if (is_cancelled) throw Error("the run was to end");
  }

  void prepare() noexcept {
    try {
      if (options.prepare_thread) options.prepare_thread();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      problem = error.what();
    } catch (...) {
      const std::lock_guard lock(mutex);
      problem = "a thread for members could not be prepared";
    }
  }

  static void serve(const std::shared_ptr<Shared>& shared) {
    shared->prepare();
    std::unique_lock lock(shared->mutex);
    while (shared->problem.empty()) {
      shared->has_work.wait(lock, [&] { return shared->is_ending || !shared->waiting.empty(); });
      if (shared->is_ending) break;
      const auto work =
          shared->under_way.insert(shared->under_way.end(), {std::move(shared->waiting.front()), Clock::now()});
      shared->waiting.pop_front();
      work->task.go_on = [its = shared.get(), work] { its->go_on(*work); };
      lock.unlock();
      MemberReply reply = carry_out(shared->options.make, work->task);
      lock.lock();
      shared->under_way.erase(work);
      shared->done.push_back(std::move(reply));
      shared->has_done.notify_all();
    }
    --shared->working;
    shared->has_done.notify_all();
  }

  // Whoever has not gone on for too long.
  const Work* late(Clock::time_point now) const {
    const auto found =
        std::ranges::find_if(under_way, [&](const Work& work) { return now - work.went_on > options.deadline; });
    return found == under_way.end() ? nullptr : &*found;
  }
};

MemberThreads::MemberThreads(MemberThreadsOptions options) {
  if (!options.make) throw UsageError("members: expected a function that makes one");
  if (options.threads < 1) throw UsageError(fmt::format("expected at least one thread, found {}", options.threads));
  const int threads = options.threads;
  shared_ = std::make_shared<Shared>(std::move(options));
  shared_->working = threads;
  for (int i = 0; i < threads; ++i) shared_->threads.emplace_back(Shared::serve, shared_);
}

MemberThreads::~MemberThreads() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->is_cancelled = true;
  shared_->has_work.notify_all();
  const bool have_ended = shared_->has_done.wait_for(
      lock, shared_->is_late ? Duration::zero() : shared_->options.deadline, [&] { return shared_->working == 0; });
  std::vector<std::thread> threads = std::move(shared_->threads);
  lock.unlock();
  for (std::thread& thread : threads) {
    if (have_ended)
      thread.join();
    else
      thread.detach();
  }
}

std::int64_t MemberThreads::places() const { return shared_->options.threads; }

void MemberThreads::begin(MemberTask task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->waiting.push_back(std::move(task));
  shared_->has_work.notify_one();
}

std::optional<MemberReply> MemberThreads::next(Duration wait) {
  const Clock::time_point end = Clock::now() + wait;
  std::unique_lock lock(shared_->mutex);
  while (shared_->done.empty()) {
    if (!shared_->problem.empty()) throw Error(shared_->problem);
    if (shared_->waiting.empty() && shared_->under_way.empty()) return std::nullopt;
    const Clock::time_point now = Clock::now();
    if (const Shared::Work* late = shared_->late(now)) {
      shared_->is_late = true;
      throw Error(fmt::format("member {} has not gone on within {} s", late->task.member,
                              std::chrono::duration<double>(shared_->options.deadline).count()));
    }
    if (now >= end) return std::nullopt;
    // To look at the deadline again, too.
    shared_->has_done.wait_until(lock, std::min(end, now + shared_->options.deadline));
  }
  MemberReply reply = std::move(shared_->done.front());
  shared_->done.pop_front();
  return reply;
}

void MemberThreads::cancel() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_cancelled = true;
}

}  // namespace tutti
