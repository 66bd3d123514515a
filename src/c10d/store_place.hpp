// Where ranks meet, as this host sees it.
//
//   const auto problem = try_to_connect(place, deadline);
//   if (problem) throw PeerError(failure_at(place, FailureKind::late, *problem));
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti::c10d {

struct StorePlace {
  std::string host;
  int port = 0;
  std::string prefix;                // of the keys there
  bool is_served_by_rank_0 = false;  // and not by a launcher
};

// Tries whether somebody listens there. Nothing where somebody does; otherwise what is wrong, as "Connection refused".
std::optional<std::string> try_to_connect(const StorePlace& place, Deadline deadline);

// The address of this host that packets to that place leave from, or nothing. Asking sends nothing.
std::string own_address_towards(const StorePlace& place);

// What to tell where the store "does not answer".
Failure failure_at(const StorePlace& place, FailureKind kind, std::string_view what);

}  // namespace tutti::c10d
