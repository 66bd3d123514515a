// Threads that do one piece of work after another together. The caller is worker 0; the others wait for the next piece,
// awake at first and then asleep.
//
//   WorkerTeam team(4);
//   team.run([&](int worker) { backward(replicas[worker]); });      // returns when all four are through
//   team.run([&](int worker) { update(slices[worker]); });
//
// One thread at a time uses a team.
#pragma once

#include <functional>
#include <memory>

#include <tutti/base/deadline.hpp>

namespace tutti {

class WorkerTeam {
 public:
  // Less than one worker is a UsageError. `begin` is called first on every thread of the team but the caller's.
  explicit WorkerTeam(int workers, const std::function<void()>& begin = {});
  // Waits for nobody: threads that are still at work end when they are through with it.
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  int size() const;

  // f(worker) on every worker. What a worker throws is rethrown here when all are through, the lowest worker's first.
  // PeerError late, naming the workers, where some are not through by the deadline; every later call says so at once,
  // because nobody can tell when they will be.
  void run(const std::function<void(int)>& f, Duration deadline = kDefaultDeadline);
  // The same on all workers but the caller, who sleeps meanwhile and leaves his core to them.
  void run_others(const std::function<void(int)>& f, Duration deadline = kDefaultDeadline);
  // Some have missed a deadline, and may still be at work.
  bool is_stuck() const;

 private:
  void finish(Deadline end, int looks);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
