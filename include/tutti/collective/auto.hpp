// What `Auto` picks, and why: a pure function of the size and the shape of the world, never of a timing.
//
//   choose_all_reduce(Bytes{4096}, {.ranks = 4, .locality = Locality::same_host});    // RecursiveDoubling{}
//   explain_all_reduce(Bytes{4096}, {.ranks = 4, .locality = Locality::same_host});   // "RecursiveDoubling: ... "
#pragma once

#include <string>

#include <tutti/base/bytes.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

struct WorldShape {
  int ranks = 1;
  Locality locality = Locality::same_address_space;  // of the farthest peer
  bool shared_memory = false;                        // whether there is a board
};

// Never Auto itself.
AllReduceStrategy choose_all_reduce(Bytes size, const WorldShape& shape);

// The same choice in words.
std::string explain_all_reduce(Bytes size, const WorldShape& shape);

}  // namespace tutti
