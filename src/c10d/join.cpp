#include <tutti/c10d/join.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <tutti/base/error.hpp>
#include <tutti/transport/store_server.hpp>

#include "gloo.hpp"

namespace tutti::c10d {
namespace {

using namespace std::chrono_literals;

// The address of this host that packets to `host` leave from. Asking sends nothing.
std::string own_address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  std::string address;
  for (const addrinfo* candidate = found; candidate != nullptr && address.empty(); candidate = candidate->ai_next) {
    const int descriptor = ::socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[INET6_ADDRSTRLEN] = {};
    if (::connect(descriptor, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      address = text;
    ::close(descriptor);
  }
  ::freeaddrinfo(found);
  return address;
}

// A write to a process that died must be an error for whoever wrote, as everywhere else in this program, and not the
// end of it. Gloo leaves that to its users; whoever has a handler of their own keeps it.
void let_broken_pipes_be_errors() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// Everybody says that it is there; waits until all are.
void meet(Store& store, const std::string& prefix, Rank rank, int size, Deadline deadline) {
  const auto key = [&](Rank other) { return fmt::format("{}/here/{}", prefix, other.value); };
  store.set(key(rank), "1");
  std::vector<Rank> missing;
  for (Rank other : all_ranks(size)) missing.push_back(other);
  for (Duration pause = 1ms;; pause = std::min<Duration>(2 * pause, 100ms)) {
    std::erase_if(missing, [&](Rank other) { return store.has(key(other)); });
    if (missing.empty()) return;
    if (deadline.passed()) {
      throw PeerError({FailureKind::late, missing,
                       fmt::format("{} did not come to the meeting place in time", to_string(missing))});
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
}

}  // namespace

std::unique_ptr<Transport> join(const JoinOptions& options) {
  const std::optional<ProcessPlace> place = options.place ? options.place : discover_place();
  if (!place) {
    throw UsageError(
        "nothing in the environment says which rank this process is; start it with tutti launch, torchrun, mpirun or "
        "srun");
  }
  const Deadline deadline = Deadline::after(options.deadline);
  const bool shared_memory = place->shared_memory.value_or(options.shared_memory);
  const Duration heartbeat = place->heartbeat.value_or(options.heartbeat);
  let_broken_pipes_be_errors();
  std::shared_ptr<StoreServer> server;
  std::vector<std::unique_ptr<Link>> links(1);
  EngineFactory engine;
  if (place->size > 1) {
    if (place->rank == Rank{0} && !place->store_is_served) {
      server =
          std::make_unique<StoreServer>(StoreServerOptions{.address = place->store_host, .port = place->store_port});
    }
    const std::shared_ptr<Store> store =
        connect_store({place->store_host, place->store_port, place->store_prefix}, deadline);
    // A program may join several times.
    const std::int64_t time = store->add(fmt::format("times/{}", place->rank.value));
    const std::string prefix = fmt::format("{}", time);
    meet(*store, prefix, place->rank, place->size, deadline);
    std::string interface = place->interface.value_or(options.interface);
    if (interface.empty()) interface = own_address_towards(place->store_host, place->store_port);
    const GlooOptions gloo{
        .store = store, .prefix = prefix, .interface = interface, .rank = place->rank, .size = place->size};
    links = connect_gloo(gloo, deadline);
    engine = gloo_calls(gloo);
  }
  return join_processes({.rank = place->rank,
                         .wires = std::move(links),
                         .heartbeat = heartbeat,
                         .shared_memory = shared_memory,
                         .engine = std::move(engine),
                         .keep = std::move(server)},
                        deadline);
}

}  // namespace tutti::c10d
