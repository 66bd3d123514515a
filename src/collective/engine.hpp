// Carries out a communicator's calls: one after the other, on the caller's thread where nothing is outstanding,
// otherwise on the progress thread, in the order they were made.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tutti/base/array.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/collective/pending.hpp>
#include <tutti/collective/plan.hpp>
#include <tutti/transport/shared_board.hpp>
#include <tutti/transport/transport.hpp>

#include "descriptor.hpp"
#include "executor.hpp"

namespace tutti::detail {

// One rank's part in a call.
struct Call {
  Descriptor descriptor;
  ConstArray source;
  Array destination;
  std::optional<Duration> deadline;
  std::string misuse;  // why the argument cannot be taken, in words; empty where it can
};

class CallEngine;

// A call that is carried out on the progress thread. Used again when its Pending is through with it.
class Operation {
 public:
  bool ready();
  void wait();     // rethrows
  void abandon();  // breaks the communicator unless the call is done, and waits until nobody uses its arrays

 private:
  friend class CallEngine;

  CallEngine* engine_ = nullptr;
  Call call_;
  Deadline deadline_ = Deadline::after(Duration::zero());
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::atomic<bool> in_use_{false};
};

class CallEngine {
 public:
  CallEngine(std::unique_ptr<Transport> transport, CommunicatorOptions options);
  ~CallEngine();

  void run(Call& call);
  std::shared_ptr<Operation> start(Call& call);

  // What `algorithm` of a descriptor comes to here.
  AllReduceStrategy resolve(const Descriptor& descriptor) const;

  Transport& transport() { return *transport_; }
  const Transport& transport() const { return *transport_; }
  const CommunicatorOptions& options() const { return options_; }
  const WorldShape& shape() const { return shape_; }
  void abort(Failure failure) { transport_->abort(std::move(failure)); }

 private:
  friend class Operation;

  // Held while a thread uses the communicator; two at once is misuse.
  class Use;

  void refuse_misuse(Call& call);
  std::shared_ptr<Operation> enqueue(const Call& call);
  void progress();

  void carry_out(Call& call, Deadline deadline);
  // What the ranks disagree on, if anything.
  std::optional<Failure> perform(Call& call, Deadline deadline);
  std::span<const Descriptor> agree_by_messages(const Descriptor& mine, Deadline deadline);
  void perform_shared(const Call& call, Rank root, bool in_slots, Deadline deadline);
  void fold_slots(const Call& call);
  void touch_memory(const Call& call, Rank root);
  void fold_slice(const Descriptor& descriptor, Slice slice);
  void look_up() const;  // whoever gave up waits for us to be through with its memory
  // The same for processes, which cannot follow each other's pointers.
  class Staging;
  void give_first_block(const Call& call);
  void perform_staged(const Call& call, Rank root, Deadline deadline);
  void perform_by_engine(const Call& call, Deadline deadline);
  void perform_by_plan(const Call& call, Rank root, const AllReduceStrategy& algorithm, Deadline deadline);
  void tell(const Call& call, std::string_view algorithm, int step) const;
  // A peer failed: breaks the communicator, gets this rank's memory back, and throws what all ranks will.
  [[noreturn]] void fail(const Call& call, const Failure& failure);
  // This rank failed: the same, but for its own exception that goes on to the caller.
  void give_up(const Call& call, std::string_view why) noexcept;

  const std::unique_ptr<Transport> transport_;
  const CommunicatorOptions options_;
  SharedBoard* const board_;
  const WorldShape shape_;

  std::uint64_t sequence_ = 0;
  std::uint64_t staged_blocks_ = 0;  // that went through the windows so far
  std::atomic<bool> in_use_{false};
  mutable bool observer_threw_ = false;

  // Memory that calls use again, so that none allocates once it has seen its like.
  std::vector<Descriptor> descriptors_;
  std::vector<Descriptor> known_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<std::byte*> targets_;
  std::vector<SendTicket> agreement_tickets_;
  Plan plan_;
  Executor executor_;

  std::atomic<int> outstanding_{0};
  std::vector<std::shared_ptr<Operation>> operations_;  // all there are
  std::mutex mutex_;
  std::condition_variable queued_;
  std::vector<std::shared_ptr<Operation>> queue_;
  bool stopping_ = false;
  std::thread progress_thread_;
};

}  // namespace tutti::detail
