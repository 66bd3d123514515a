// What `Auto` picks, and why: a pure function of size, ranks and locality, never of a timing.
//
//   choose_all_reduce(Bytes{4096}, 4, Locality::same_host);    // RecursiveDoubling{}
//   explain_all_reduce(Bytes{4096}, 4, Locality::same_host);   // "RecursiveDoubling: ... "
#pragma once

#include <string>

#include <tutti/base/bytes.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

// Never Auto itself. `locality` is that of the farthest peer.
AllReduceStrategy choose_all_reduce(Bytes size, int ranks, Locality locality);

// The same choice in words.
std::string explain_all_reduce(Bytes size, int ranks, Locality locality);

}  // namespace tutti
