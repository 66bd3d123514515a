// Gossip as a run carries it out: each process has what its replicas learn, and rank 0 hands out tasks alone.
//
//   const std::shared_ptr<Gossip> gossip = make_gossip(run, trained_parameters(run, *net), world);
//   AsynchronousServer server(parameters, {.gossip = gossip});                          // rank 0
//   reply.bytes_exchanged = learn_and_meet(*gossip, replica, *reply.gradients, rate);   // where the replica is
#pragma once

#include <memory>

#include <tutti/collective/communicator.hpp>
#include <tutti/coordinate/gossip.hpp>
#include <tutti/train/run.hpp>

#include "asynchronous_server.hpp"
#include "gradient_worker.hpp"

namespace tutti::detail {

// Null where the run has none.
std::shared_ptr<Gossip> make_gossip(const Run& run, const TrainedParameters& parameters, const Communicator* world);

// Returns how many bytes of parameters it and neighbours have given to each other.
double learn_and_meet(Gossip& gossip, int replica, const ParameterSet& gradients, double rate_factor);

}  // namespace tutti::detail
