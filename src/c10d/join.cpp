#include <tutti/c10d/join.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/transport/store_server.hpp>

#include "aside.hpp"
#include "gloo.hpp"
#include "store_place.hpp"

namespace tutti::c10d {
namespace {

using namespace std::chrono_literals;

// When to say what one waits for: after ten seconds, and then ever less often.
class Reminder {
 public:
  bool is_due() {
    if (Deadline::Clock::now() - begin_ < next_) return false;
    next_ *= 6;
    return true;
  }

 private:
  const Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  Duration next_ = 10s;
};

// A write to a process that died must be an error for whoever wrote, as everywhere else in this program, and not the
// end of it. Gloo leaves that to its users; whoever has a handler of their own keeps it.
void let_broken_pipes_be_errors() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// The how many-th meeting of this rank it is: a program may join several times, and one program after the other.
struct Time {
  std::int64_t number = 1;
  bool was_somebody_else = false;  // the time before
};

Time count_times(Store& store, Rank rank) {
  static const std::string self = fmt::format("{:016x}{:016x}", std::random_device{}(), std::random_device{}());
  const std::string key = fmt::format("who/{}", rank.value);
  const Time time{.number = store.add(fmt::format("times/{}", rank.value)),
                  .was_somebody_else = store.has(key) && store.get(key) != self};
  store.set(key, self);
  return time;
}

// The store that this process serves there. It stays as long as the process does: a program may join again, and the
// others may come to the next meeting before this one has left the last.
void serve_store(const ProcessPlace& place) {
  static std::mutex mutex;
  static auto& servers =
      *new std::map<std::pair<std::string, int>, StoreServer>;  // for its threads outlive all statics
  const std::lock_guard lock(mutex);
  servers.try_emplace({place.store_host, place.store_port},
                      StoreServerOptions{.address = place.store_host, .port = place.store_port});
}

// Waits until somebody serves it. libtorch would try as well, and tell of every attempt.
void wait_for_store(const StorePlace& place, Rank rank, Deadline deadline) {
  Reminder reminder;
  for (Duration pause = 1ms;; pause = std::min<Duration>(2 * pause, 100ms)) {
    const std::optional<std::string> problem = try_to_connect(place, deadline);
    if (!problem) return;
    if (reminder.is_due()) {
      fmt::print(stderr, "tutti: {} still waits for the store at {}:{} ({})\n", to_string(rank), place.host, place.port,
                 *problem);
    }
    if (deadline.passed())
      throw PeerError(failure_at(place, FailureKind::late, fmt::format("cannot be reached: {}", *problem)));
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
}

// Everybody says that it is there, and how many it takes them to be; waits until all are.
void meet(Store& store, const Time& time, Rank rank, int size, Deadline deadline) {
  const auto key = [&](Rank other) { return fmt::format("{}/here/{}", time.number, other.value); };
  const std::string hint =
      time.was_somebody_else
          ? fmt::format(" (another process came as {} before; were two started as the same?)", to_string(rank))
          : "";
  store.set(key(rank), std::to_string(size));
  std::vector<Rank> missing = all_ranks_but(rank, size);
  const auto has_come = [&](Rank other) {
    if (!store.has(key(other))) return false;
    if (const std::string theirs = store.get(key(other)); theirs != std::to_string(size)) {
      throw UsageError(fmt::format("the ranks disagree on how many they are: {} on {}, {} on {}", size, to_string(rank),
                                   theirs, to_string(other)));
    }
    return true;
  };
  Reminder reminder;
  for (Duration pause = 1ms;; pause = std::min<Duration>(2 * pause, 100ms)) {
    std::erase_if(missing, has_come);
    if (missing.empty()) return;
    if (reminder.is_due())
      fmt::print(stderr, "tutti: {} still waits for {}{}\n", to_string(rank), to_string(missing), hint);
    if (deadline.passed()) {
      throw PeerError({FailureKind::late, missing,
                       fmt::format("{} did not come to the meeting place in time{}", to_string(missing), hint)});
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
}

// What the ranks of a job are to each other once they have met.
struct Connected {
  std::vector<std::unique_ptr<Link>> links;
  EngineFactory engine;
};

// All that is done with libtorch, whose store knows no deadline.
class Meeting {
 public:
  Meeting(const ProcessPlace& place, std::string interface, Deadline deadline)
      : store_place_{.host = place.store_host,
                     .port = place.store_port,
                     .prefix = place.store_prefix,
                     .is_served_by_rank_0 = !place.store_is_served},
        rank_(place.rank),
        size_(place.size),
        interface_(std::move(interface)),
        deadline_(deadline) {}

  Connected hold() {
    wait_for_store(store_place_, rank_, deadline_);
    const std::shared_ptr<Store> store = connect_store(store_place_, deadline_);
    const Time time = count_times(*store, rank_);
    const std::string prefix = std::to_string(time.number);
    meet(*store, time, rank_, size_, deadline_);
    have_met_.store(true);
    if (interface_.empty()) interface_ = own_address_towards(store_place_);
    const GlooOptions gloo{.store = store, .prefix = prefix, .interface = interface_, .rank = rank_, .size = size_};
    return {.links = connect_gloo(
                gloo, [given_up = given_up_] { return given_up->load(); }, deadline_),
            .engine = gloo_calls(gloo)};
  }

  bool have_met() const { return have_met_.load(); }

  // It is not over when it should be: why.
  Failure give_up() {
    given_up_->store(true);
    if (have_met()) {
      return {FailureKind::late, all_ranks_but(rank_, size_),
              "the ranks have met, but could not all connect: one may have died just then"};
    }
    return failure_at(store_place_, FailureKind::late, "does not answer");
  }

 private:
  const StorePlace store_place_;
  const Rank rank_;
  const int size_;
  std::string interface_;
  const Deadline deadline_;
  std::atomic<bool> have_met_{false};
  const std::shared_ptr<std::atomic<bool>> given_up_ = std::make_shared<std::atomic<bool>>(false);
};

Connected connect(const ProcessPlace& place, const std::string& interface, Deadline deadline) {
  // Who is only slow to say who has not come.
  constexpr Duration kGrace = 1s;
  // Once all are there it takes a moment, for each of them.
  const Duration connecting = 30s + place.size * 100ms;
  const auto meeting = std::make_shared<Meeting>(place, interface, deadline);
  Aside<Connected> aside([meeting] { return meeting->hold(); });
  const Deadline met_by = Deadline::after(deadline.remaining() + kGrace);
  std::optional<Deadline> connected_by;
  while (!aside.is_through(Deadline::after(20ms))) {
    if (meeting->have_met() && !connected_by) connected_by = Deadline::after(connecting);
    if (met_by.passed() || (connected_by && connected_by->passed())) throw PeerError(meeting->give_up());
  }
  return aside.result();
}

}  // namespace

std::unique_ptr<Transport> join(const JoinOptions& options) {
  const std::optional<ProcessPlace> place = options.place ? options.place : discover_place();
  if (!place) {
    throw UsageError(
        "nothing in the environment says which rank this process is; start it with tutti launch, torchrun, mpirun or "
        "srun");
  }
  if (!place->why_no_store.empty()) throw UsageError(place->why_no_store);
  const Deadline deadline = Deadline::after(options.deadline);
  const bool shared_memory = place->shared_memory.value_or(options.shared_memory);
  const Duration heartbeat = place->heartbeat.value_or(options.heartbeat);
  let_broken_pipes_be_errors();
  std::vector<std::unique_ptr<Link>> links(1);
  EngineFactory engine;
  if (place->size > 1) {
    if (place->rank == Rank{0} && !place->store_is_served) serve_store(*place);
    Connected connected = connect(*place, place->interface.value_or(options.interface), deadline);
    links = std::move(connected.links);
    engine = std::move(connected.engine);
  }
  return join_processes({.rank = place->rank,
                         .wires = std::move(links),
                         .heartbeat = heartbeat,
                         .shared_memory = shared_memory,
                         .engine = std::move(engine)},
                        deadline);
}

}  // namespace tutti::c10d
