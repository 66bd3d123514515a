// Ranks that are processes, on the engine that PyTorch runs on: a c10d store to meet, Gloo's connections to talk.
//
//   std::unique_ptr<Transport> transport = c10d::join();      // as tutti launch, torchrun, mpirun or srun started us
//   Communicator world(std::move(transport));
//
// docs/launch.md tells how processes are started and which variables they look at.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <tutti/base/deadline.hpp>
#include <tutti/transport/environment.hpp>
#include <tutti/transport/processes.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti::c10d {

struct JoinOptions {
  // Who this process is; as the environment says, where not given.
  std::optional<ProcessPlace> place = {};
  // What the environment (TUTTI_INTERFACE, TUTTI_HEARTBEAT, TUTTI_SHARED_MEMORY) says comes before these, so that
  // whoever starts a program can change them.
  std::string interface = {};  // a network interface or an address of this host; that which reaches the store
  Duration heartbeat = kDefaultHeartbeat;
  bool shared_memory = true;
  // How long to wait until all have come.
  Duration deadline = kDefaultDeadline;
};

// A UsageError where nothing says that this is one of several processes; PeerError late naming who has not come,
// or nobody where a launcher serves the store and that does not answer.
std::unique_ptr<Transport> join(const JoinOptions& options = {});

}  // namespace tutti::c10d
