// The thread of coordinators: what is merged while others add and stop.
#include "coordinate/update_thread.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::detail {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace tutti::detail
