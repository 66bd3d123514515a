// Replicas of a model that each have parameters and an optimizer of their own, and now and then take the mean with a
// neighbour, two at a time, in their process or in another one. Nobody waits for everybody, and nobody has it all.
//
//   Gossip gossip(parameters, {.replicas = 4, .make_rule = [] { return make_update_rule(Sgd{.lr = 0.1}); }});
//   // each replica, on a thread of its own:
//   gossip.learn(replica, gradients_of(*gossip.parameters(replica)));
//   gossip.meet(replica);
//   // while nobody learns or meets:
//   ParameterSet mean = gossip.mean();
//
// On the processes of a world:
//
//   Gossip gossip(parameters, {.replicas = 4, .process = rank, .processes = size, .make_rule = ...});
//   gossip.connect(world);
//   // replicas of this process as above; mean() and save() at rank 0 alone
//   gossip.finish();                      // once replicas here have ended: waits until those elsewhere have, too
//
// A meeting. One sends its parameters x; the other takes half of the difference to its own, d = (x - y) / 2, goes that
// way, y + d, and sends d back, by which the first goes towards it, x - d. So what they add up to stays as it is,
// whatever becomes of both meanwhile: nobody holds a lock while something travels, and who answers waits for nobody.
// One whose parameters are on their way in a meeting of its own meets one other meanwhile, of a lower number; more are
// refused, and draw again. So meetings that cross each other are no swap, and no parameter ever leaves what those of
// all replicas span.
//
// Each two processes have a world of their own. One that dies, or does not answer within the deadline, is left out from
// then on: of meetings, of the mean, and of the topology, which closes itself over those who are left. Of a meeting
// that is under way meanwhile, one may have gone its half of the way alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/update_rule.hpp>
#include <tutti/strategy/data_parallel.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

namespace detail {
class GossipNeighbours;
class GossipSeats;
}  // namespace detail

struct GossipOptions {
  int replicas = 1;  // of all processes, dealt out evenly
  strategy::Topology topology = strategy::Topology::ring;
  std::uint64_t seed = 0;  // of whom who meets
  int process = 0;
  int processes = 1;
  std::function<std::unique_ptr<UpdateRule>()> make_rule = {};  // called for each replica of the process
  Duration deadline = kDefaultDeadline;  // for what another process answers; in a meeting a quarter of it
};

// Any thread may call any of these; for a replica, one at a time. A replica that is not of this process is refused with
// a UsageError.
class Gossip {
 public:
  // A UsageError for parameters that are not float32 or float64, where there is no rule, and for options that cannot
  // be.
  Gossip(const ParameterSet& parameters, const GossipOptions& options);
  // Breaks what is not finished.
  ~Gossip();
  Gossip(const Gossip&) = delete;
  Gossip& operator=(const Gossip&) = delete;

  // --- replicas of this process ---

  Slice here() const;
  bool is_here(int replica) const;
  // As they are now: a copy.
  std::shared_ptr<const ParameterSet> parameters(int replica) const;
  // A UsageError for gradients that are not of this model, infinite or not a number. What the rule throws: nothing is
  // changed.
  void learn(int replica, const ParameterSet& gradients, double rate_factor = 1);
  // Takes the mean with a neighbour that is drawn, where there is one. Returns how many bytes of parameters the two
  // have given to each other.
  double meet(int replica);
  // How many there are, of all processes: those that are lost do not count.
  int living() const;

  // --- at rank 0, while nobody learns or meets anywhere ---

  // Of all that live. An Error where none do.
  ParameterSet mean();
  // Their mean, and what each has to itself.
  void save(ParameterSet& arrays);
  // It is not counted any more, and all others hear of it.
  void lose(int replica);
  // Sentences about processes that do not reach each other, since the last call.
  std::vector<std::string> take_problems();

  // Those of this process, on each. Who was not there has the mean, and the optimizer of the first. A UsageError for
  // what is of another model or rule: that replica is as it was, and so are those behind it. Restored::what_fits is for
  // another optimizer, and for parameters that were not trained before: these are what all had.
  void restore(const ParameterSet& arrays, Restored what = Restored::all);

  // --- with others ---

  // All processes call it, once. Waits until all are there, for the deadline at the longest. A UsageError where it is
  // connected already, and for a world of other processes; an Error that says what differs where processes have other
  // replicas, another topology or seed, or parameters of other names, shapes or types.
  void connect(Transport& world);
  // The world of this process and another, of which the lower one is rank 0; others may talk there, too. Where it
  // breaks, that process is lost.
  std::shared_ptr<Transport> pair(int process) const;
  // Once no replica of this process will meet anybody, and nothing more is asked of others: answers until these are as
  // far, for the deadline at the longest.
  void finish();
  // Nobody is met any more, and waits end.
  void end(std::string_view why) noexcept;

 private:
  struct Line;
  struct Head;

  Slice replicas_of(int process) const;
  int process_of(int replica) const;
  Line* line_to(int process) const;
  std::vector<std::string> terms() const;
  void agree(std::span<const std::unique_ptr<Line>> lines) const;
  void answer_all(Line& line);
  bool answer(Line& line, std::vector<std::byte>& message);
  bool meet_there(int replica, int other, double& bytes);
  void tell(Line& line, const Head& head);
  void give_up(Line& line, const Failure& why);
  void note_lost(int replica);
  void note_cut(int one, int other);
  void rethrow_failure();

  GossipOptions options_;
  ParameterSet layout_;
  std::unique_ptr<detail::GossipSeats> seats_;
  std::unique_ptr<detail::GossipNeighbours> neighbours_;
  std::vector<std::unique_ptr<Line>> lines_;  // by process; none to itself
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_finishing_ = false;
  std::exception_ptr failure_;
  std::set<std::pair<int, int>> cuts_;  // who said that it does not reach whom
  std::vector<std::string> problems_;
};

}  // namespace tutti
