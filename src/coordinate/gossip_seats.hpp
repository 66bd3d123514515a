// What the replicas of one process have each to itself in gossip: parameters, and an optimizer. How two of them meet,
// and what one that meets another elsewhere sends and answers.
//
//   seats.meet(0, 1);                          // both here
//
//   seats.set_out(0, message);                 // one here,
//   seats.answer(5, 0, message);               // the other there: what came becomes what goes back
//   seats.come_back(0, message);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti::detail {

// Any thread; a replica is named by its number among those of all processes.
class GossipSeats {
 public:
  GossipSeats(const Slice& replicas, const ParameterSet& parameters,
              const std::function<std::unique_ptr<UpdateRule>()>& make_rule);

  const Slice& replicas() const { return replicas_; }
  bool has(int replica) const;
  // Of a replica's parameters, one array behind the other.
  std::size_t bytes() const { return bytes_; }
  std::size_t elements() const { return elements_; }

  std::shared_ptr<const ParameterSet> parameters(int replica) const;
  void learn(int replica, const ParameterSet& gradients, double rate_factor);
  // How many it had before.
  std::uint64_t count_meeting(int replica);

  // False where the other cannot now.
  bool meet(int replica, int other);
  void set_out(int replica, std::span<std::byte> parameters);
  // Half of the difference takes the place of `theirs`. False where this one cannot now.
  bool answer(int replica, int other, std::span<std::byte> theirs);
  // The other has not heard of it.
  void take_back(int replica, std::span<const std::byte> half);
  void come_back(int replica, std::span<const std::byte> half);
  // Nothing came of it.
  void come_back(int replica);

  void add_to(std::span<double> sum, int replica) const;
  void save(ParameterSet& arrays, int replica) const;
  void restore(const ParameterSet& arrays, int replica, Restored what);

 private:
  struct Seat {
    mutable std::mutex mutex;
    std::unique_ptr<UpdateRule> rule;
    ParameterSet parameters;
    std::int64_t meetings = 0;
    bool is_away = false;  // its parameters are on their way in a meeting of its own
    bool has_met = false;  // somebody meanwhile
  };

  // A UsageError for one that is not here.
  Seat& at(int replica) const;

  Slice replicas_;
  std::size_t bytes_ = 0;
  std::size_t elements_ = 0;
  std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace tutti::detail
