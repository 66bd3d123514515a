// Gloo, as libtorch has it: what this layer needs of torch is behind this header, in one file.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/transport/engine_calls.hpp>
#include <tutti/transport/link.hpp>

#include "store_place.hpp"

namespace tutti::c10d {

// Where ranks leave word for each other until they are connected. A client of c10d's TCPStore.
class Store {
 public:
  virtual ~Store() = default;

  // How many came to `key`, this one included.
  virtual std::int64_t add(const std::string& key) = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  // Of a key that there is.
  virtual std::string get(const std::string& key) = 0;
};

// PeerError late where nobody serves it by then.
std::shared_ptr<Store> connect_store(const StorePlace& place, Deadline deadline);

struct GlooOptions {
  std::shared_ptr<Store> store;
  std::string prefix;     // of the keys of this group; not used before
  std::string interface;  // a network interface, or an address of this host
  Rank rank = {};
  int size = 1;
};

// A link to every other rank, by rank. All must call it. It waits for the others' addresses until the deadline or until
// `given_up`; where one dies while they connect, it waits for ever.
std::vector<std::unique_ptr<Link>> connect_gloo(const GlooOptions& options, const std::function<bool()>& given_up,
                                                Deadline deadline);

// Gloo's own collectives, for the worlds that stem from that group. Connections of their own are made at the first
// call.
EngineFactory gloo_calls(const GlooOptions& options);

}  // namespace tutti::c10d
