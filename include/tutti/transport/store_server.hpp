// Where processes meet: a store of keys and values that c10d's TCPStore (PyTorch and libtorch 1.13) can be a client of.
//
//   StoreServer server({.address = "127.0.0.1"});             // any free port
//   c10d::TCPStore store(server.address(), {.port = server.port(), .isServer = false});
//
// c10d's own server listens on every interface; this one on a single address. There is no password: whoever can reach
// the address can read and write. A client that sends what no TCPStore sends, or more than may be held, is dropped, and
// disturbs neither the server nor the other clients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tutti/base/bytes.hpp>

namespace tutti {

struct StoreServerOptions {
  std::string address = "127.0.0.1";  // IPv4 or IPv6, or a host name that stands for one
  int port = 0;                       // 0: any that is free
  Bytes most_per_query{64 << 20};     // keys and values of one query together
  Bytes most_held{1 << 30};           // all that is stored, and all that is under way
};

// Serves from construction to destruction, on a thread of its own.
class StoreServer {
 public:
  // A UsageError where it cannot listen there.
  explicit StoreServer(const StoreServerOptions& options = {});
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  // Clients that are still connected lose their connection.
  ~StoreServer();

  // Where it listens, in digits.
  const std::string& address() const;
  std::uint16_t port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace tutti
