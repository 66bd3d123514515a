// Ranks that are threads of this process and talk as processes do, over queue links (support/queue_links.hpp) or
// through a folder.
//
//   run_mesh_world({.ranks = 3, .lend = true}, [](std::unique_ptr<Transport> transport) { ... });
#pragma once

#include <functional>
#include <memory>

#include <tutti/transport/transport.hpp>

namespace tutti::testing {

struct MeshWorld {
  int ranks = 1;
  bool shared_memory = false;
  bool lend = false;    // long messages stay where they are while they are on their way
  bool folder = false;  // they share nothing but that
};

// Throws what a rank threw, the lowest one's; a PeerError only where nobody threw anything else.
void run_mesh_world(const MeshWorld& world, const std::function<void(std::unique_ptr<Transport>)>& rank);

}  // namespace tutti::testing
