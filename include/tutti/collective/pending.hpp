// A call that was started and not yet waited for.
//
//   Pending sum = start_all_reduce(world, gradients);
//   prepare_next_batch();
//   sum.wait();                                          // rethrows what went wrong
//
// Calls are carried out in the order they were started, which must be the same on every rank. Until `wait` returned the
// arrays belong to the call. A Pending that is destroyed before breaks the communicator: its peers need not wait for a
// call that nobody wants any more.
#pragma once

#include <memory>

namespace tutti {

namespace detail {
class Operation;
}

class [[nodiscard]] Pending {
 public:
  explicit Pending(std::shared_ptr<detail::Operation> operation);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  // Never waits.
  bool ready() const;
  // Waits until the call's own deadline at the longest. A second wait is a UsageError.
  void wait();

 private:
  std::shared_ptr<detail::Operation> operation_;
};

}  // namespace tutti
