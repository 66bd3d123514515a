// Members of a population on all processes of a world: rank 0 has the population and a pool over the places of all,
// and the others serve it.
//
//   c10d::run([](Communicator& world) {
//     const MemberThreadsOptions here{.make = make_member, .threads = 2};
//     if (world.rank() != Rank{0}) return (void)serve_members(world.transport(), here);
//     MemberProcesses pool(world.transport(), here);
//     Population population({.strategy = strategy, .space = space, .folder = "runs/mine"});
//     population.run(pool);
//     pool.end();
//   });
//
// A task goes to a process with what it goes on from, and comes back with what it leaves: point to point, and nothing
// of it stays there. So the same seed gives the same population on any number of processes, and files are rank 0's.
// A process that is lost, or not heard of within the deadline, ends the run for all: a PeerError that names it. A
// member that does not go on within the deadline is an Error on its process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/coordinate/member_pool.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

// On rank 0.
class MemberProcesses final : public MemberPool {
 public:
  // Waits until all others serve, for the deadline at the longest. `here`: what rank 0 itself trains members with.
  // The world outlives this.
  MemberProcesses(Transport& world, const MemberThreadsOptions& here);
  // Without end(), the others wait until the world breaks, or for their deadline.
  ~MemberProcesses() override;
  MemberProcesses(const MemberProcesses&) = delete;
  MemberProcesses& operator=(const MemberProcesses&) = delete;

  std::int64_t places() const override;
  void begin(MemberTask task) override;
  std::optional<MemberReply> next(Duration wait) override;
  void cancel() override;
  // What is being done is cancelled; then the others come back from serve_members.
  void end();

  // Whether another process was asked to end the run; to be asked with is_interrupted of the population.
  bool is_interrupted() const { return is_interrupted_; }

 private:
  Transport& world_;
  Duration deadline_;
  std::vector<std::pair<Rank, std::int64_t>> others_;  // places of other ranks: the rank, and which of its own
  std::atomic<bool> is_interrupted_ = false;
  std::unique_ptr<detail::MemberPlaces> places_;
};

// On the other ranks: trains what rank 0 asks for, until it ends. `is_interrupted` is asked now and then while a member
// trains, by any of its threads, and rank 0 hears of it.
void serve_members(Transport& world, const MemberThreadsOptions& here,
                   const std::function<bool()>& is_interrupted = {});

}  // namespace tutti
