// Workers of an asynchronous run on other processes: each has a line to rank 0, where a thread asks the server for it.
//
//   GradientLines lines(world, server, {.replicas = 4, .deadline = 10min});      // rank 0
//   ...
//   lines.finish({.reason = ..., .step = 1200});           // the others hear how it ended
//
//   const RunEnd end = work_for(world, options);           // the others
//
// Each of the others has a world of two with rank 0, so that one that is lost breaks no other's: what it was at is
// somebody else's from then on. Where rank 0 is lost, the others end with a PeerError.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/collective/communicator.hpp>

#include "asynchronous_server.hpp"

namespace tutti::detail {

struct RunEnd {
  event::RunEnded::Reason reason = event::RunEnded::Reason::finished;
  std::int64_t step = 0;
};

// What a worker did, from one reply to the next.
class SpansOfTasks {
 public:
  using Kind = event::SpanEnded::Kind;
  using Clock = std::chrono::steady_clock;

  explicit SpansOfTasks(int replica) : replica_(replica) {}

  // Since the last one, or since its reply.
  void note(Kind kind, const char* name) {
    const Clock::time_point now = Clock::now();
    spans_.push_back({replica_, kind, name, std::exchange(last_, now), now});
  }
  // Ahead of its own.
  void give(GradientReply& reply) {
    reply.spans.insert(reply.spans.begin(), spans_.begin(), spans_.end());
    spans_.clear();
    last_ = Clock::now();
  }

 private:
  int replica_;
  Clock::time_point last_ = Clock::now();
  std::vector<StepSpan> spans_;
};

struct GradientLinesOptions {
  int replicas = 1;                                                  // of all processes, dealt out evenly
  std::function<std::shared_ptr<Transport>(int process)> pair = {};  // a world of two that is there already
  std::chrono::steady_clock::time_point began = {};  // of the run, here: no process has the clock of another
  Duration deadline = kDefaultDeadline;
};

class GradientLines {
 public:
  // Waits until all others are there, for the deadline at the longest.
  GradientLines(Communicator& world, std::shared_ptr<AsynchronousServer> server, const GradientLinesOptions& options);
  // Once the server has ended or failed. Without finish() the others end with a failure that somebody else tells.
  ~GradientLines();
  GradientLines(const GradientLines&) = delete;
  GradientLines& operator=(const GradientLines&) = delete;

  // Somebody wants the run to end, at another process.
  bool is_interrupted() const;
  // Sentences about processes that were lost since the last call.
  std::vector<std::string> take_problems();
  void finish(const RunEnd& end);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Computes the gradients of a task; one thread for each worker of the process.
using ComputeGradients = std::function<GradientReply(int worker, std::int64_t task, const ParameterSet& parameters)>;

struct GradientWorkersOptions {
  int first = 0;  // of this process's
  int count = 1;
  ComputeGradients compute = {};
  std::function<void()> prepare_thread = {};
  std::function<bool()> is_interrupted = {};
  std::chrono::steady_clock::time_point began = {};  // of the run, here
  bool tells_spans = false;
  std::shared_ptr<Transport> pair = {};  // a world of two with rank 0, where it is there already
  Duration deadline = kDefaultDeadline;
};

// Until rank 0 says that it is over. What a worker throws ends the run for all.
RunEnd work_for(Communicator& world, const GradientWorkersOptions& options);

}  // namespace tutti::detail
