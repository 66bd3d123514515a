// What replicas do with each other's parameters that have all of them to themselves: after each update they mix them
// with their neighbours', or every so many updates they change what they have in common by the mean of what became of
// it.
//
//   const std::unique_ptr<ReplicaMixer> mixer = make_replica_mixer(run, own);
//   mixer->after_update(updates);          // so many there were
//   ParameterSet mean = mixer->mean();     // what is evaluated, and exported
//
// With a world all processes make the same calls, and those that take steps alone only where they meet. One thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// Of the replicas of this process: those that are trained, and not private anyway.
struct OwnParameters {
  int replicas = 1;  // of all processes
  int first = 0;     // of this one's
  std::vector<std::string> names = {};
  std::vector<std::vector<torch::Tensor>> tensors = {};  // by replica
  Communicator* world = nullptr;
};

class ReplicaMixer {
 public:
  virtual ~ReplicaMixer() = default;

  // A clause, for people.
  virtual std::string describe() const = 0;
  // Whether it is the turn of everybody after so many updates; otherwise after_update() does nothing.
  virtual bool meets_after(std::int64_t /*updates*/) const { return true; }
  // Returns how many bytes of parameters replicas have given to others.
  virtual double after_update(std::int64_t updates) = 0;
  // Of all replicas.
  virtual ParameterSet mean() = 0;
  // What it keeps between steps, on every process alike.
  virtual void save(ParameterSet& /*arrays*/) const {}
  virtual void restore(const ParameterSet& /*arrays*/) {}
};

// Whether replicas of this run have all parameters to themselves.
bool has_replica_mixer(const Run& run);
// And take some steps without hearing of others.
bool takes_steps_alone(const Run& run);
// How long one waits then for the others: they may be as many steps behind as are taken alone, each of which may take
// until its deadline. Nothing where no steps are taken alone.
std::optional<Duration> deadline_for_others(const Run& run);
// As data_parallel_options(); where there is a mixer, with all parameters private.
DataParallelOptions replica_options(const Run& run, const GraphModule& net);
std::unique_ptr<ReplicaMixer> make_replica_mixer(const Run& run, OwnParameters own);

}  // namespace tutti::detail
