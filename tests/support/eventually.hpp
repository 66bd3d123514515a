// Waits for what another thread is about to do.
//
//   ASSERT_TRUE(eventually([&] { return coordinator.pending() == 0; }));
//   ASSERT_TRUE(eventually([&] { return is_asleep(tid); }));            // tid: what gettid() told on that thread
#pragma once

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <sys/types.h>

namespace tutti::testing {

// False where it takes more than a minute.
template <typename Condition>
bool eventually(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Whether a thread of this process waits for something, in two looks at it.
inline bool is_asleep(pid_t tid) {
  for (int look = 0; look < 2; ++look) {
    std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/stat");
    std::string line;
    std::getline(file, line);
    const auto name_end = line.rfind(')');
    if (name_end == std::string::npos || line.substr(name_end + 2, 1) != "S") return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tutti::testing
