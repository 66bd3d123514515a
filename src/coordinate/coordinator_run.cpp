#include <tutti/coordinate/coordinator_run.hpp>

#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "waiting.hpp"

namespace tutti {

void CoordinatorRun::State::end(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  failure_ = std::move(failure);
  ends_.notify_all();
}

bool CoordinatorRun::State::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

std::exception_ptr CoordinatorRun::State::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool CoordinatorRun::State::wait(Duration wait) const {
  std::unique_lock lock(mutex_);
  if (!detail::wait(ends_, lock, Deadline::after(wait), [&] { return has_ended_; })) return false;
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void CoordinatorRun::wait(Duration deadline) const {
  if (!state_->wait(deadline)) throw Error(fmt::format("the coordinator has not ended within {}", to_string(deadline)));
}

}  // namespace tutti
