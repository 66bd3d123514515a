#include <tutti/sync/worker_team.hpp>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>

namespace tutti {
namespace {

// How often to look, yielding the core between looks, before going to sleep: some two milliseconds.
constexpr int kLooks = 4000;

std::vector<int> numbers_of(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

}  // namespace

struct WorkerTeam::State {
  struct alignas(128) Seat {
    std::atomic<std::uint64_t> done{0};
    std::exception_ptr error;
  };

  explicit State(int workers) : seats(static_cast<std::size_t>(workers)) {}

  // Until ready() or the deadline; `changed` is rung whenever it may have become true.
  template <typename Ready>
  bool wait(std::condition_variable& changed, Ready ready, Deadline deadline, int looks = kLooks) {
    for (int i = 0; i < looks; ++i) {
      if (ready()) return true;
      sched_yield();
    }
    std::unique_lock lock(mutex);
    ++sleepers;
    bool is_ready = ready();
    while (!is_ready && !deadline.passed()) {
      changed.wait_for(lock, std::min<Duration>(deadline.remaining(), std::chrono::hours(1)));
      is_ready = ready();
    }
    --sleepers;
    return is_ready;
  }

  void ring(std::condition_variable& changed) {
    if (sleepers.load() == 0) return;
    const std::lock_guard lock(mutex);
    changed.notify_all();
  }

  void begin(const std::function<void(int)>& f) {
    if (failure) throw PeerError(*failure);
    piece = f;
    pieces.fetch_add(1);
    ring(work_changed);
  }

  void work(int worker) {
    Seat& seat = seats[static_cast<std::size_t>(worker)];
    try {
      piece(worker);
    } catch (...) {
      seat.error = std::current_exception();
    }
  }

  void serve(int worker) {
    for (std::uint64_t next = 1;; ++next) {
      // A team without work is not late.
      while (!wait(
          work_changed, [&] { return pieces.load() >= next || ended.load(); }, Deadline::after(kDefaultDeadline))) {
      }
      if (ended.load()) return;
      work(worker);
      seats[static_cast<std::size_t>(worker)].done.store(next);
      ring(done_changed);
    }
  }

  std::vector<Rank> at_work() const {
    std::vector<Rank> ranks;
    for (std::size_t worker = 1; worker < seats.size(); ++worker) {
      if (seats[worker].done.load() < pieces.load()) ranks.push_back(Rank{static_cast<int>(worker)});
    }
    return ranks;
  }

  std::vector<Seat> seats;
  std::function<void(int)> piece;  // a copy: whoever is late still runs it
  std::atomic<std::uint64_t> pieces{0};
  std::atomic<bool> ended{false};
  std::atomic<int> sleepers{0};
  std::mutex mutex;
  std::condition_variable work_changed;
  std::condition_variable done_changed;
  std::vector<std::thread> threads;
  std::optional<Failure> failure;
};

WorkerTeam::WorkerTeam(int workers, const std::function<void()>& begin) {
  if (workers < 1) throw UsageError(fmt::format("a team has at least 1 worker, found {}", workers));
  state_ = std::make_shared<State>(workers);
  for (int worker = 1; worker < workers; ++worker) {
    state_->threads.emplace_back([state = state_, worker, begin] {
      if (begin) begin();
      state->serve(worker);
    });
  }
}

WorkerTeam::~WorkerTeam() {
  state_->ended.store(true);
  {
    const std::lock_guard lock(state_->mutex);
    state_->work_changed.notify_all();
  }
  const std::vector<Rank> at_work = state_->at_work();
  for (std::size_t i = 0; i < state_->threads.size(); ++i) {
    const bool is_at_work = std::ranges::find(at_work, Rank{static_cast<int>(i) + 1}) != at_work.end();
    is_at_work ? state_->threads[i].detach() : state_->threads[i].join();
  }
}

int WorkerTeam::size() const { return static_cast<int>(state_->seats.size()); }

bool WorkerTeam::is_stuck() const { return state_->failure.has_value(); }

void WorkerTeam::run(const std::function<void(int)>& f, Duration deadline) {
  const Deadline end = Deadline::after(deadline);
  state_->begin(f);
  state_->work(0);
  finish(end, kLooks);
}

void WorkerTeam::run_others(const std::function<void(int)>& f, Duration deadline) {
  const Deadline end = Deadline::after(deadline);
  state_->begin(f);
  finish(end, 0);
}

void WorkerTeam::finish(Deadline end, int looks) {
  if (!state_->wait(
          state_->done_changed, [&] { return state_->at_work().empty(); }, end, looks)) {
    const std::vector<Rank> late = state_->at_work();
    state_->failure = {
        FailureKind::late, late,
        fmt::format("worker{} {} not through in time", late.size() == 1 ? "" : "s",
                    fmt::format("{} {}", fmt::join(numbers_of(late), " and "), late.size() == 1 ? "was" : "were"))};
    throw PeerError(*state_->failure);
  }
  state_->piece = nullptr;
  std::exception_ptr first;
  for (State::Seat& seat : state_->seats) {
    std::exception_ptr error = std::exchange(seat.error, nullptr);
    if (error && !first) first = std::move(error);
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tutti
