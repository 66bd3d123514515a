#include "store_place.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <system_error>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tutti::c10d {
namespace {

// Opens a socket to each of the host's addresses until `use` is content with one. What the resolver said where it knows
// none.
std::optional<std::string> for_each_address(const StorePlace& place, int type,
                                            const std::function<bool(int descriptor, const addrinfo&)>& use) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (problem != 0) return ::gai_strerror(problem);
  bool is_content = false;
  for (const addrinfo* address = found; address != nullptr && !is_content; address = address->ai_next) {
    const int descriptor = ::socket(address->ai_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) continue;
    is_content = use(descriptor, *address);
    ::close(descriptor);
  }
  ::freeaddrinfo(found);
  return std::nullopt;
}

// 0, or what errno would be. One of several addresses may lead nowhere, so none gets all the time there is.
int connect_by(int descriptor, const addrinfo& address, Deadline deadline) {
  constexpr std::chrono::milliseconds kLongest{3000};
  if (::connect(descriptor, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd event{descriptor, POLLOUT, 0};
  const auto patience = std::min(kLongest, std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
  const int events = ::poll(&event, 1, static_cast<int>(patience.count()));
  if (events < 0) return errno;
  if (events == 0) return ETIMEDOUT;
  int problem = 0;
  socklen_t length = sizeof problem;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &problem, &length);
  return problem;
}

}  // namespace

std::optional<std::string> try_to_connect(const StorePlace& place, Deadline deadline) {
  int problem = ENETUNREACH;
  const std::optional<std::string> unknown =
      for_each_address(place, SOCK_STREAM, [&](int descriptor, const addrinfo& address) {
        problem = connect_by(descriptor, address, deadline);
        return problem == 0;
      });
  if (unknown) return unknown;
  if (problem == 0) return std::nullopt;
  return std::generic_category().message(problem);
}

std::string own_address_towards(const StorePlace& place) {
  std::string own_address;
  for_each_address(place, SOCK_DGRAM, [&](int descriptor, const addrinfo& address) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[INET6_ADDRSTRLEN] = {};
    if (::connect(descriptor, address.ai_addr, address.ai_addrlen) == 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      own_address = text;
    return !own_address.empty();
  });
  return own_address;
}

Failure failure_at(const StorePlace& place, FailureKind kind, std::string_view what) {
  return {kind, place.is_served_by_rank_0 ? std::vector{Rank{0}} : std::vector<Rank>{},
          fmt::format("the store at {}:{}, where the ranks meet, {}{}", place.host, place.port, what,
                      place.is_served_by_rank_0 ? "; rank 0, which serves it, may not have come, or have ended" : "")};
}

}  // namespace tutti::c10d
