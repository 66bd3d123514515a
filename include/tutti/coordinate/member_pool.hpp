// Where members of a population are trained, as the engine knows it: a way to begin a task, and what comes of each.
// MemberThreads is one; MemberProcesses (coordinate/member_processes.hpp) is another.
//
//   MemberThreads pool({.make = [](const MemberTask& task) { return std::make_unique<Climber>(task); }, .threads = 2});
//   pool.begin({.member = 0, .hyper_parameters = values});
//   while (const std::optional<MemberReply> reply = pool.next(100ms)) ...
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tutti/base/deadline.hpp>
#include <tutti/coordinate/population_member.hpp>

namespace tutti {

struct MemberReply {
  std::int64_t member = 0;
  std::int64_t generation = 0;
  std::string failure = {};  // a sentence where it has failed; there is no state then
  MemberScore score = {};
  MemberState state = {};
};

// One thread at a time.
class MemberPool {
 public:
  virtual ~MemberPool() = default;

  // How many are trained at the same time.
  virtual std::int64_t places() const = 0;
  // Returns at once; each task is answered once, unless it is cancelled. No more are begun than there are places.
  virtual void begin(MemberTask task) = 0;
  // The next that is through; nothing where none is for so long, or nothing is being done. An Error where a member has
  // not gone on within the pool's deadline.
  virtual std::optional<MemberReply> next(Duration wait) = 0;
  // What is being done ends at its next go_on(), and next() tells nothing of it any more, nor of what was through
  // before. What is begun from then on waits for a place, and is not cancelled.
  virtual void cancel() = 0;
};

// Makes a member for the task, carries it out and saves it; what it throws is the reply's failure.
MemberReply carry_out(const MakeMember& make, const MemberTask& task);

struct MemberThreadsOptions {
  MakeMember make = {};  // called on any of the threads
  int threads = 1;
  Duration deadline = kDefaultDeadline;       // from one go_on() of a member to its next
  std::function<void()> prepare_thread = {};  // called on each thread first
};

// A UsageError for what cannot be.
void validate(const MemberThreadsOptions& options);

namespace detail {
class MemberPlaces;
}

class MemberThreads final : public MemberPool {
 public:
  explicit MemberThreads(const MemberThreadsOptions& options);
  // Cancels what is being done, and waits for it as long as the deadline says; then threads are left to themselves.
  ~MemberThreads() override;
  MemberThreads(const MemberThreads&) = delete;
  MemberThreads& operator=(const MemberThreads&) = delete;

  std::int64_t places() const override;
  void begin(MemberTask task) override;
  std::optional<MemberReply> next(Duration wait) override;
  void cancel() override;

 private:
  std::unique_ptr<detail::MemberPlaces> places_;
};

}  // namespace tutti
