// A world of ranks that make calls together. Each rank holds one; the k-th call of each rank meets the k-th of the
// others.
//
//   run_ranks(4, [](Communicator& world) { all_reduce(world, gradients); });
//
//   Communicator half = world.split({.color = world.rank().value % 2});
//   try { all_reduce(world, gradients); }
//   catch (const PeerError& error) {
//     if (!error.communicator_usable()) world = world.rebuild(survivors);
//   }
//
// Threads: one thread at a time uses a communicator; `cancel` may come from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/collective/auto.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

// Told before each step of each call, on the thread that carries the call out.
struct StepEvent {
  std::string_view call;       // "all_reduce"
  std::string_view algorithm;  // "Ring"; "agreement" while the ranks compare what they brought
  std::uint64_t sequence = 0;  // counts this communicator's calls
  int step = 0;
};

struct CommunicatorOptions {
  // How long a call waits for peers that are alive and slow, where the call does not say.
  Duration deadline = kDefaultDeadline;
  // For tracing. What it throws ends the call as a failure of this rank would, and reaches the caller.
  std::function<void(const StepEvent&)> on_step = {};
};

struct SplitOptions {
  int color = 0;  // ranks of one color form a group
  int key = 0;    // and are ordered by key, then by rank
};

namespace detail {
class CallEngine;
}

class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  Rank rank() const;
  int size() const;
  WorldShape shape() const;

  // False once it was moved from; a UsageError in every other call then.
  bool valid() const { return engine_ != nullptr; }

  // A broken communicator says so at once in every call; `rebuild` makes a new one.
  bool broken() const;
  std::optional<Failure> failure() const;

  // Ends every call in progress, on every rank, with an error that names this one and says why; breaks the
  // communicator.
  void cancel(std::string_view why);

  // All ranks call it. Each gets the group of its color.
  [[nodiscard]] Communicator split(const SplitOptions& options);

  // Those who go on call it with the same list of ranks of this communicator, sorted or not; theirs are the new ranks 0
  // to n-1, in the list's order. Waits until all have come, for the communicator's own deadline at the longest.
  [[nodiscard]] Communicator rebuild(std::span<const Rank> survivors);

  Transport& transport();
  detail::CallEngine& engine();

 private:
  detail::CallEngine& checked() const;

  std::unique_ptr<detail::CallEngine> engine_;
};

}  // namespace tutti
