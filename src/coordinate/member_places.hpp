// Threads that carry the tasks of members out, each in its own way: with a member here, or by a process that it speaks
// to. What MemberThreads and MemberProcesses share.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/coordinate/member_pool.hpp>

namespace tutti::detail {

// All of it is called on the place's own thread; what is thrown ends the pool.
struct MemberPlace {
  std::function<MemberReply(const MemberTask&)> carry_out = {};
  std::function<void()> prepare = {};  // first
  std::function<void()> idle = {};     // every so often, while there is nothing to do
  // It waits with deadlines of its own, and so comes back; a member here may hang.
  bool comes_back = false;
};

// A place here.
MemberPlace own_place(const MemberThreadsOptions& options);

struct MemberPlacesOptions {
  std::vector<MemberPlace> places = {};
  Duration deadline = kDefaultDeadline;  // from one go_on() of a member to its next
  Duration idle_every = std::chrono::seconds(1);
};

// As MemberPool.
class MemberPlaces {
 public:
  explicit MemberPlaces(MemberPlacesOptions options);
  // Cancels what is being done. Threads of members that do not go on within the deadline are left to themselves.
  ~MemberPlaces();
  MemberPlaces(const MemberPlaces&) = delete;
  MemberPlaces& operator=(const MemberPlaces&) = delete;

  std::int64_t places() const;
  void begin(MemberTask task);
  std::optional<MemberReply> next(Duration wait);
  void cancel();
  // Waits until all threads have ended, as the destructor does, and throws what one of them has thrown.
  void end();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with threads that may outlive this, where a member hangs
};

}  // namespace tutti::detail
