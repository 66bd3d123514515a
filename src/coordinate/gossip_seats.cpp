#include "gossip_seats.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/update_check.hpp>

namespace tutti::detail {
namespace {

std::string replica_prefix(int replica) { return fmt::format("replica/{}/", replica); }
std::string worker_prefix(int replica) { return fmt::format("worker/{}/", replica); }

std::size_t padded(std::size_t bytes) { return (bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double); }

// Each array of a set beside what travels of it.
template <typename Set, typename Byte, typename F>
void with_each(Set& set, std::span<Byte> flat, const F& f) {
  for (auto& array : set) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        using Flat = std::conditional_t<std::is_const_v<Byte>, const T, T>;
        f(array.template values<T>(), std::span(reinterpret_cast<Flat*>(flat.data()), array.length()));
      }
    });
    flat = flat.subspan(padded(array.bytes().size()));
  }
}

void subtract(std::span<const std::byte> half, ParameterSet& from) {
  with_each(from, half, [](const auto& its, const auto& by) {
    for (std::size_t j = 0; j < its.size(); ++j) its[j] -= by[j];
  });
}

}  // namespace

GossipSeats::GossipSeats(const Slice& replicas, const ParameterSet& parameters,
                         const std::function<std::unique_ptr<UpdateRule>()>& make_rule)
    : replicas_(replicas) {
  if (!make_rule) throw UsageError("replicas that meet need a rule to learn by: make_rule");
  for (const NamedArray& array : parameters) {
    if (array.type() != DataType::float32 && array.type() != DataType::float64)
      throw UsageError(fmt::format("\"{}\" is {}; replicas that meet have float32 or float64", array.name(),
                                   to_string(array.layout())));
    bytes_ += padded(array.bytes().size());
    elements_ += array.length();
  }
  for (std::size_t i = 0; i < replicas.count; ++i) {
    Seat& seat = *seats_.emplace_back(std::make_unique<Seat>());
    seat.rule = make_rule();
    if (!seat.rule) throw UsageError("expected rules by which gradients change parameters, and make_rule made none");
    seat.rule->prepare(parameters);
    seat.parameters = parameters;
  }
}

bool GossipSeats::has(int replica) const {
  return replica >= 0 && static_cast<std::size_t>(replica) >= replicas_.first &&
         static_cast<std::size_t>(replica) < replicas_.end();
}

std::shared_ptr<const ParameterSet> GossipSeats::parameters(int replica) const {
  const Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  return std::make_shared<const ParameterSet>(seat.parameters);
}

void GossipSeats::learn(int replica, const ParameterSet& gradients, double rate_factor) {
  Seat& seat = at(replica);
  {
    const std::lock_guard lock(seat.mutex);
    if (const std::string difference = seat.parameters.layout_difference(gradients); !difference.empty())
      throw UsageError(fmt::format("these gradients are not of this model: {}", difference));
  }
  for (const NamedArray& array : gradients) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has gradients that are infinite or not a number", array.name()));
  }
  const std::lock_guard lock(seat.mutex);
  if (seat.rule->never_fails()) return seat.rule->apply(seat.parameters, gradients, {.rate_factor = rate_factor});
  ParameterSet changed = seat.parameters;
  seat.rule->apply(changed, gradients, {.rate_factor = rate_factor});
  if (!seat.parameters.same_layout(changed)) throw Error("the rule has made a model of other names, shapes or types");
  seat.parameters = std::move(changed);
}

GossipSeats::Seat& GossipSeats::at(int replica) const {
  if (!has(replica))
    throw UsageError(fmt::format("replica {} is not of this process, which has {} from {} on", replica, replicas_.count,
                                 replicas_.first));
  return *seats_[static_cast<std::size_t>(replica) - replicas_.first];
}

std::uint64_t GossipSeats::count_meeting(int replica) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  return static_cast<std::uint64_t>(seat.meetings++);
}

// --- meetings ---

bool GossipSeats::meet(int replica, int other) {
  Seat& one = at(replica);
  Seat& two = at(other);
  const std::scoped_lock both(one.mutex, two.mutex);
  if (two.is_away && std::exchange(two.has_met, true)) return false;
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    dispatch(one.parameters[i].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        const std::span<T> its = one.parameters[i].values<T>();
        const std::span<T> theirs = two.parameters[i].values<T>();
        for (std::size_t j = 0; j < its.size(); ++j) its[j] = theirs[j] = (its[j] + theirs[j]) / 2;
      }
    });
  }
  return true;
}

void GossipSeats::set_out(int replica, std::span<std::byte> parameters) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  with_each(std::as_const(seat.parameters), parameters,
            [](const auto& its, const auto& to) { std::memcpy(to.data(), its.data(), its.size_bytes()); });
  seat.is_away = true;
  seat.has_met = false;
}

bool GossipSeats::answer(int replica, int other, std::span<std::byte> theirs) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  // Of two that ask each other at the same time one is refused; and so is one of each circle.
  if (seat.is_away && (other > replica || std::exchange(seat.has_met, true))) return false;
  with_each(seat.parameters, theirs, [](const auto& its, const auto& half) {
    for (std::size_t j = 0; j < its.size(); ++j) {
      half[j] = (half[j] - its[j]) / 2;
      its[j] += half[j];
    }
  });
  return true;
}

void GossipSeats::take_back(int replica, std::span<const std::byte> half) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  subtract(half, seat.parameters);
}

void GossipSeats::come_back(int replica, std::span<const std::byte> half) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  subtract(half, seat.parameters);
  seat.is_away = false;
}

void GossipSeats::come_back(int replica) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  seat.is_away = false;
}

// --- as a whole ---

void GossipSeats::add_to(std::span<double> sum, int replica) const {
  const Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  for (const NamedArray& array : seat.parameters) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        const std::span<const T> its = array.values<T>();
        for (std::size_t j = 0; j < its.size(); ++j) sum[j] += static_cast<double>(its[j]);
      }
    });
    sum = sum.subspan(array.length());
  }
}

void GossipSeats::save(ParameterSet& arrays, int replica) const {
  const Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  for (const NamedArray& array : seat.parameters)
    arrays.add({replica_prefix(replica) + array.name(), array.shape(), array.type()}, array.bytes());
  seat.rule->save(arrays, worker_prefix(replica));
  arrays.add(worker_prefix(replica) + "meetings", {}, ConstArray(&seat.meetings, 1, DataType::int64));
}

void GossipSeats::restore(const ParameterSet& arrays, int replica, Restored what) {
  Seat& seat = at(replica);
  const std::lock_guard lock(seat.mutex);
  const std::string name = worker_prefix(replica) + "meetings";
  const NamedArray* saved = arrays.find(name);
  const bool was_there = saved != nullptr;
  std::int64_t meetings = 0;
  if (was_there) {
    const std::span<const std::int64_t> numbers = saved->values<std::int64_t>();
    if (numbers.size() != 1 || numbers[0] < 0)
      throw UsageError(fmt::format("\"{}\": expected one number from 0 on", name));
    meetings = numbers[0];
  }
  ParameterSet parameters = seat.parameters;
  const std::string its_own = was_there ? replica_prefix(replica) : "";
  for (NamedArray& parameter : parameters) {
    const bool has_its_own = what == Restored::all || arrays.find(its_own + parameter.name()) != nullptr;
    copy_array(arrays.at((has_its_own ? its_own : "") + parameter.name()), parameter);
  }
  if (const auto astray = std::ranges::find_if_not(parameters, has_finite_numbers); astray != parameters.end())
    throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", astray->name()));
  restore_rule(*seat.rule, arrays, worker_prefix(was_there ? replica : 0), what);
  seat.parameters = std::move(parameters);
  seat.meetings = meetings;
}

}  // namespace tutti::detail
