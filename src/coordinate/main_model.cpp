#include <tutti/coordinate/main_model.hpp>

#include <algorithm>
#include <utility>

#include <tutti/base/error.hpp>

namespace tutti {
namespace {

void copy_values(const ParameterSet& from, ParameterSet& to) {
  if (!from.same_layout(to)) {
    to = from;
    return;
  }
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i].bytes(), to[i].bytes().begin());
}

}  // namespace

// While this is, they are changed where they are, and nobody gets a snapshot.
class MainModel::InPlace {
 public:
  explicit InPlace(MainModel& model, std::unique_lock<std::mutex>& lock) : model_(model), lock_(lock) {
    model_.is_changing_in_place_ = true;
    lock_.unlock();
  }
  ~InPlace() {
    lock_.lock();
    model_.is_changing_in_place_ = false;
    model_.has_changed_.notify_all();
  }
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

 private:
  MainModel& model_;
  std::unique_lock<std::mutex>& lock_;
};

void MainModel::set(ParameterSet parameters) {
  auto copy = std::make_shared<Copy>();
  copy->parameters = std::move(parameters);
  const std::lock_guard changing(changing_);
  const std::lock_guard lock(mutex_);
  if (current_ || given_) ++version_;
  current_ = std::move(copy);
  given_ = nullptr;
  others_.clear();
}

void MainModel::set(std::shared_ptr<const ParameterSet> parameters) {
  if (!parameters) throw UsageError("expected parameters, found none");
  const std::lock_guard changing(changing_);
  const std::lock_guard lock(mutex_);
  if (current_ || given_) ++version_;
  current_ = nullptr;
  given_ = std::move(parameters);
  others_.clear();
}

ModelSnapshot MainModel::snapshot() const {
  std::unique_lock lock(mutex_);
  // Whoever changes parameters next does so in a copy, so that this waits for one change at most.
  ++waiting_;
  has_changed_.wait(lock, [&] { return !is_changing_in_place_; });
  --waiting_;
  if (given_) return {given_, version_};
  if (!current_) return {nullptr, version_};
  // What was read before the last snapshot went is read before anything is written there again.
  current_->readers.fetch_add(1, std::memory_order_relaxed);
  return {std::shared_ptr<const ParameterSet>(
              &current_->parameters,
              [copy = current_](const ParameterSet*) { copy->readers.fetch_sub(1, std::memory_order_release); }),
          version_};
}

std::int64_t MainModel::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

bool MainModel::empty() const {
  const std::lock_guard lock(mutex_);
  return !current_ && !given_;
}

void MainModel::hold(const std::function<void(const ParameterSet& parameters, std::int64_t version)>& f) const {
  const std::lock_guard changing(changing_);
  if (current_ || given_) f(its_parameters(), version_);
}

void MainModel::restore(ParameterSet parameters, std::int64_t version, const std::function<void()>& first) {
  auto copy = std::make_shared<Copy>();
  copy->parameters = std::move(parameters);
  const std::lock_guard changing(changing_);
  if (first) first();
  const std::lock_guard lock(mutex_);
  version_ = version;
  current_ = std::move(copy);
  given_ = nullptr;
  others_.clear();
}

// With changing_ held. Of those that nobody reads one is taken, one is kept, since new memory costs more than a copy,
// and the rest is freed.
std::shared_ptr<MainModel::Copy> MainModel::idle_copy() {
  std::shared_ptr<Copy> idle;
  bool keeps_one = false;
  std::erase_if(others_, [&](std::shared_ptr<Copy>& copy) {
    if (copy->readers.load(std::memory_order_acquire) > 0) return false;
    if (!idle) {
      idle = std::move(copy);
      return true;
    }
    return std::exchange(keeps_one, true);
  });
  return idle ? idle : std::make_shared<Copy>();
}

std::int64_t MainModel::change(const Changer& f, bool never_fails) {
  const std::lock_guard changing(changing_);
  std::unique_lock lock(mutex_);
  if (!current_ && !given_) throw UsageError("there are no parameters to change");
  if (never_fails && current_ && waiting_ == 0 && current_->readers.load(std::memory_order_acquire) == 0) {
    {
      const InPlace changing_in_place(*this, lock);
      f(current_->parameters, version_);
    }
    return ++version_;
  }
  lock.unlock();  // nobody else sets current_ meanwhile
  std::shared_ptr<Copy> next = idle_copy();
  copy_values(its_parameters(), next->parameters);
  f(next->parameters, version_);
  lock.lock();
  if (current_) others_.push_back(std::move(current_));
  current_ = std::move(next);
  given_ = nullptr;
  return ++version_;
}

}  // namespace tutti
