// The thread of coordinators: what is merged while others add and stop.
#include "coordinate/update_thread.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include "support/eventually.hpp"
#include "support/usage_error.hpp"

namespace tutti::detail {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using testing::eventually;
using testing::is_asleep;

// One is being merged into the newest when another is added and all is told to stop: that other one was added before.
TEST(UpdateThread, TakesWhatWasAddedBeforeItStopsWhateverIsMergedMeanwhile) {
  std::promise<void> is_merging;
  std::promise<void> may_merge;
  std::mutex mutex;
  std::vector<int> taken;
  UpdateThread<int> updates({.capacity = 2,
                             .take =
                                 [&](int& update, std::int64_t&) {
                                   const std::lock_guard lock(mutex);
                                   taken.push_back(update);
                                 },
                             .merge =
                                 [&](int& newest, const int& added) {
                                   is_merging.set_value();
                                   may_merge.get_future().wait();
                                   newest += added;
                                 }});
  updates.add(1, 10s);
  updates.add(2, 10s);
  std::thread merging([&] { updates.add(20, 10s); });
  is_merging.get_future().wait();
  const CoordinatorRun run = updates.start();
  const auto has_taken = [&] {
    const std::lock_guard lock(mutex);
    return !taken.empty();
  };
  while (!has_taken()) std::this_thread::yield();
  updates.add(300, 10s);                                         // there is room
  EXPECT_THROW(updates.stop(Duration::zero()), std::exception);  // it has heard, and waits for who merges
  may_merge.set_value();
  run.wait(10s);
  merging.join();
  EXPECT_EQ(updates.pending(), 0U);
  EXPECT_EQ(taken, (std::vector{1, 22, 300}));
}

// As a merge that fails: what it had kept until then is gone with it.
TEST(UpdateThread, CountsWhatIsGoneWithWhatFails) {
  std::int64_t kept = 0;
  UpdateThread<int> updates({.take = [&](int& update, std::int64_t& settled) {
    settled = 0;
    if (++kept < 3) return;
    settled = std::exchange(kept, 0);
    if (update == 13) throw std::runtime_error("thirteen");
  }});
  for (const int update : {1, 2, 13, 4, 5}) updates.add(update, 10s);
  EXPECT_THROW(updates.start().wait(), std::runtime_error);
  EXPECT_EQ(updates.pending(), 2U);
  const CoordinatorRun run = updates.start();
  updates.add(6, 10s);
  updates.stop(10s);
  EXPECT_EQ(updates.pending(), 0U);
}

// Who waits for the end is told what was dropped, and not that all is well.
TEST(UpdateThread, EndsWithWhatItDrops) {
  std::promise<void> is_taking;
  std::promise<void> goes_on;
  auto updates =
      std::make_unique<UpdateThread<int>>(UpdateThread<int>::Options{.capacity = 1, .take = [&](int&, std::int64_t&) {
                                                                       is_taking.set_value();
                                                                       goes_on.get_future().wait();
                                                                     }});
  const CoordinatorRun run = updates->start();
  updates->add(1, 10s);
  is_taking.get_future().wait();
  updates->add(2, 10s);
  std::atomic<pid_t> sender = 0;
  auto waits = std::async(std::launch::async, [&, its = updates.get()] {
    sender = ::gettid();
    return error_of([&] { its->add(3, 1min); });
  });
  ASSERT_TRUE(eventually([&] { return sender != 0 && is_asleep(sender); }));
  std::thread ends([its = std::move(updates)]() mutable { its = nullptr; });
  EXPECT_EQ(waits.get(), "the coordinator has come to its end");
  goes_on.set_value();
  EXPECT_EQ(error_of([&] { run.wait(1min); }), "the coordinator came to its end before 1 updates were through");
  ends.join();
}

// A thread that hangs holds up who ends it for as long as it was told, and no longer.
TEST(UpdateThread, LeavesAThreadThatHangsToItself) {
  struct Gate {
    std::promise<void> is_taking;
    std::promise<void> goes_on;
  };
  const auto gate = std::make_shared<Gate>();
  std::optional<CoordinatorRun> run;
  {
    UpdateThread<int> updates({.deadline = 1ms, .take = [gate](int&, std::int64_t&) {
                                 gate->is_taking.set_value();
                                 gate->goes_on.get_future().wait();
                               }});
    run = updates.start();
    updates.add(1, 10s);
    gate->is_taking.get_future().wait();
  }
  EXPECT_FALSE(run->has_ended());
  gate->goes_on.set_value();
  run->wait(1min);  // nothing was dropped
}

}  // namespace
}  // namespace tutti::detail
