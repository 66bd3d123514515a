// A call of libtorch's that knows no deadline, made aside: on a thread of its own, which is left behind where the call
// does not come back in time. So what the call uses it must own.
//
//   Aside<int> aside([store] { return store->get("size"); });
//   if (!aside.is_through(deadline)) throw ...
//   use(aside.result());
#pragma once

#include <functional>
#include <future>
#include <thread>

#include <tutti/base/deadline.hpp>

namespace tutti::c10d {

template <typename Result>
class Aside {
 public:
  explicit Aside(std::function<Result()> call) {
    std::packaged_task<Result()> task(std::move(call));
    result_ = task.get_future();
    std::thread(std::move(task)).detach();
  }

  // Waits until it is, at most until the deadline.
  bool is_through(Deadline deadline) const {
    return result_.wait_for(deadline.remaining()) == std::future_status::ready;
  }

  // Once it is: what the call returned, or throws what it threw.
  Result result() { return result_.get(); }

 private:
  std::future<Result> result_;
};

}  // namespace tutti::c10d
