#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/transport/store_server.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// The first byte of each query, as c10d's TCPStore of 1.13 sends it.
enum : std::uint8_t { kSet, kCompareSet, kGet, kAdd, kCheck, kWait, kNumKeys, kWatch, kDelete };

std::string number(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string text(std::string_view value) { return number(value.size()) + std::string(value); }

std::string query(std::uint8_t kind) { return std::string(1, static_cast<char>(kind)); }

// A connection to a store. Whatever it waits for has to come within ten seconds.
class RawClient {
 public:
  RawClient(const std::string& host, std::uint16_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
    socket_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const int yes = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    connected_ = ::connect(socket_, found->ai_addr, found->ai_addrlen) == 0;
    ::freeaddrinfo(found);
  }
  explicit RawClient(const StoreServer& server) : RawClient(server.address(), server.port()) {}
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { ::close(socket_); }

  bool connected() const { return connected_; }

  // False where the server has dropped us.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  std::string receive(std::size_t size) {
    if (size == 0) return {};
    std::string bytes(size, '\0');
    const ssize_t count = ::recv(socket_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return bytes;
  }

  std::int64_t receive_number() {
    const std::string bytes = receive(8);
    std::int64_t value = -1;
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  std::string receive_text() {
    const std::int64_t size = receive_number();
    return size < 0 ? "nothing came" : receive(static_cast<std::size_t>(size));
  }

  bool has_answer() const {
    char byte = 0;
    return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }

  bool is_dropped() {
    char byte = 0;
    const ssize_t count = ::recv(socket_, &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }

  void set(std::string_view key, std::string_view value) { send(query(kSet) + text(key) + text(value)); }
  std::string get(std::string_view key) {
    send(query(kGet) + text(key));
    return receive_text();
  }
  std::int64_t add(std::string_view key, std::int64_t value) {
    send(query(kAdd) + text(key) + number(static_cast<std::uint64_t>(value)));
    return receive_number();
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    send(query(kCompareSet) + text(key) + text(expected) + text(desired));
    return receive_text();
  }
  bool check(const std::vector<std::string>& keys) {
    send(keys_query(kCheck, keys));
    return receive(1) == std::string(1, '\0');
  }
  void begin_wait(const std::vector<std::string>& keys) { send(keys_query(kWait, keys)); }
  bool end_wait() { return receive(1) == std::string(1, '\0'); }
  std::int64_t num_keys() {
    send(query(kNumKeys));
    return receive_number();
  }
  std::int64_t remove(std::string_view key) {
    send(query(kDelete) + text(key));
    return receive_number();
  }
  bool watch(std::string_view key) {
    send(query(kWatch) + text(key));
    return receive(1) == "\3";
  }

  struct Change {
    int kind;
    std::string key, before, after;
    friend bool operator==(const Change&, const Change&) = default;
  };
  Change receive_change() {
    const std::string kind = receive(1);
    Change change{kind.empty() ? -1 : kind[0], receive_text(), {}, {}};
    change.before = receive_text();
    change.after = receive_text();
    return change;
  }

 private:
  static std::string keys_query(std::uint8_t kind, const std::vector<std::string>& keys) {
    std::string bytes = query(kind) + number(keys.size());
    for (const std::string& key : keys) bytes += text(key);
    return bytes;
  }

  int socket_ = -1;
  bool connected_ = false;
};

// A query that was answered shows that those before it were taken.
void expect_alive(const StoreServer& server) {
  RawClient client(server);
  EXPECT_GT(client.add("alive", 1), 0);
}

TEST(StoreServer, GivesOneClientWhatAnotherSet) {
  StoreServer server;
  RawClient writer(server);
  RawClient reader(server);
  const std::string binary("a\0b\xff", 4);
  writer.set("key", binary);
  reader.begin_wait({"key"});
  EXPECT_TRUE(reader.end_wait());
  EXPECT_EQ(reader.get("key"), binary);
  writer.set("key", "");
  EXPECT_EQ(writer.num_keys(), 1);
  EXPECT_EQ(reader.get("key"), "");
}

TEST(StoreServer, TakesAValueThatComesInManyPieces) {
  StoreServer server;
  RawClient slow(server);
  RawClient quick(server);
  const std::string bytes = query(kSet) + text("a key") + text("a value") + query(kNumKeys);
  for (const char byte : bytes) {
    ASSERT_TRUE(slow.send(std::string(1, byte)));
    ASSERT_GT(quick.add("counter", 1), 0);  // the half-sent query holds nobody up
  }
  EXPECT_EQ(slow.receive_number(), 2);
  EXPECT_EQ(quick.get("a key"), "a value");
}

TEST(StoreServer, PassesLargeValuesOn) {
  StoreServer server;
  RawClient writer(server);
  std::string large(20'000'000, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 256);
  writer.set("large", large);
  EXPECT_EQ(writer.num_keys(), 1);
  EXPECT_TRUE(RawClient(server).get("large") == large);
}

TEST(StoreServer, CountsWhatManyClientsAddAtOnce) {
  StoreServer server;
  constexpr int kClients = 20;
  constexpr int kTimes = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&server] {
      RawClient client(server);
      std::int64_t last = 0;
      for (int time = 0; time < kTimes; ++time) {
        const std::int64_t sum = client.add("sum", 3);
        EXPECT_GT(sum, last);
        last = sum;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RawClient client(server);
  EXPECT_EQ(client.get("sum"), std::to_string(3 * kClients * kTimes));
  EXPECT_EQ(client.add("sum", -3 * kClients * kTimes), 0);
  EXPECT_EQ(client.add("new", -5), -5);
}

TEST(StoreServer, AWaitEndsWhenTheLastKeyComes) {
  StoreServer server;
  RawClient waiter(server);
  RawClient other(server);
  other.set("a", "1");
  EXPECT_EQ(other.num_keys(), 1);
  waiter.begin_wait({"a", "b", "c", "b"});
  other.set("b", "2");
  EXPECT_EQ(other.num_keys(), 2);
  EXPECT_FALSE(waiter.has_answer());
  other.add("c", 1);
  EXPECT_TRUE(waiter.end_wait());
  waiter.begin_wait({});
  EXPECT_TRUE(waiter.end_wait());
  waiter.begin_wait({"d"});
  other.compare_set("d", "", "4");
  EXPECT_TRUE(waiter.end_wait());
}

TEST(StoreServer, AGivenUpWaitIsNotAnsweredLater) {
  StoreServer server;
  RawClient waiter(server);
  waiter.begin_wait({"never"});
  EXPECT_EQ(waiter.add("sum", 1), 1);
  RawClient other(server);
  other.set("never", "after all");
  EXPECT_EQ(other.num_keys(), 2);
  EXPECT_EQ(waiter.add("sum", 1), 2);
  EXPECT_FALSE(waiter.has_answer());
}

TEST(StoreServer, ChecksWithoutWaiting) {
  StoreServer server;
  RawClient client(server);
  client.set("a", "");
  EXPECT_TRUE(client.check({"a"}));
  EXPECT_TRUE(client.check({}));
  EXPECT_FALSE(client.check({"a", "b"}));
}

TEST(StoreServer, DeletesKeys) {
  StoreServer server;
  RawClient client(server);
  client.set("a", "1");
  EXPECT_EQ(client.remove("a"), 1);
  EXPECT_EQ(client.remove("a"), 0);
  EXPECT_EQ(client.num_keys(), 0);
  EXPECT_FALSE(client.check({"a"}));
}

TEST(StoreServer, SetsOnlyWhatIsAsExpected) {
  StoreServer server;
  RawClient client(server);
  EXPECT_EQ(client.compare_set("key", "something", "new"), "something");  // as c10d answers where there is no key
  EXPECT_EQ(client.num_keys(), 0);
  EXPECT_EQ(client.compare_set("key", "", "first"), "first");
  EXPECT_EQ(client.compare_set("key", "wrong", "second"), "first");
  EXPECT_EQ(client.compare_set("key", "first", "second"), "second");
  EXPECT_EQ(client.get("key"), "second");
}

TEST(StoreServer, TellsWatchersOfEveryChange) {
  StoreServer server;
  RawClient watcher(server);
  RawClient client(server);
  ASSERT_TRUE(watcher.watch("key"));
  ASSERT_TRUE(watcher.watch("key"));
  client.set("other", "x");
  client.set("key", "1");
  client.add("key", 2);
  client.compare_set("key", "3", "4");
  client.remove("key");
  using Change = RawClient::Change;
  EXPECT_EQ(watcher.receive_change(), (Change{1, "key", "", "1"}));
  EXPECT_EQ(watcher.receive_change(), (Change{0, "key", "1", "3"}));
  EXPECT_EQ(watcher.receive_change(), (Change{0, "key", "3", "4"}));
  EXPECT_EQ(watcher.receive_change(), (Change{2, "key", "4", ""}));
}

TEST(StoreServer, ListensOnItsAddressAlone) {
  StoreServer server({.address = "127.0.0.1"});
  EXPECT_EQ(server.address(), "127.0.0.1");
  EXPECT_TRUE(RawClient("127.0.0.1", server.port()).connected());
  EXPECT_FALSE(RawClient("127.0.0.2", server.port()).connected());
  StoreServer elsewhere({.address = "127.0.0.2", .port = server.port()});
  RawClient client("127.0.0.2", server.port());
  EXPECT_EQ(client.add("sum", 1), 1);
}

TEST(StoreServer, TakesHostNamesAndRefusesWhatIsNoAddressOfThisHost) {
  EXPECT_THAT(StoreServer({.address = "localhost"}).address(), testing::AnyOf("127.0.0.1", "::1"));
  const auto serve_at = [](const std::string& address, int port) {
    return [=] { StoreServer server({.address = address, .port = port}); };
  };
  EXPECT_THAT(serve_at("no such host", 0), ThrowsMessage<UsageError>(HasSubstr("'no such host'")));
  EXPECT_THAT(serve_at("", 0), ThrowsMessage<UsageError>(HasSubstr("empty")));
  EXPECT_THAT(serve_at("192.0.2.1", 0), ThrowsMessage<UsageError>(HasSubstr("192.0.2.1")));
  EXPECT_THAT(serve_at("127.0.0.1", 65536), ThrowsMessage<UsageError>(HasSubstr("from 0 to 65535")));
  StoreServer server;
  EXPECT_THAT(serve_at("127.0.0.1", server.port()),
              ThrowsMessage<UsageError>(AllOf(HasSubstr(std::to_string(server.port())), HasSubstr("in use"))));
}

TEST(StoreServer, DropsClientsThatSendWhatNoStoreTakes) {
  StoreServer server;
  RawClient good(server);
  good.set("text", "no number");
  EXPECT_EQ(good.num_keys(), 1);
  const std::uint64_t huge = std::uint64_t{1} << 60;
  const std::string bad[] = {
      query(9),
      query(255) + "GET / HTTP/1.1\r\n\r\n",
      query(kSet) + number(huge),
      query(kSet) + text("key") + number(huge),
      query(kSet) + text("key") + number(~std::uint64_t{0}),
      query(kSet) + text("key") + number((64u << 20) + 1),
      query(kCompareSet) + text("key") + text("") + number(huge),
      query(kWait) + number(huge),
      query(kCheck) + number(65537),
      query(kGet) + text("not there"),
      query(kAdd) + text("text") + number(1),
  };
  for (const std::string& bytes : bad) {
    RawClient client(server);
    client.send(bytes);
    EXPECT_TRUE(client.is_dropped());
    EXPECT_EQ(good.num_keys(), 1);
  }
  expect_alive(server);
}

TEST(StoreServer, HoldsNoMoreThanItMay) {
  StoreServer server({.most_per_query = Bytes{1000}, .most_held = Bytes{10'000}});
  RawClient greedy(server);
  const std::string value(900, 'x');
  int accepted = 0;
  for (int i = 0; i < 100; ++i) {
    greedy.set("key " + std::to_string(i), value);
    if (greedy.num_keys() != i + 1) break;
    ++accepted;
  }
  EXPECT_GT(accepted, 3);
  EXPECT_LT(accepted, 12);
  RawClient other(server);
  EXPECT_EQ(other.num_keys(), accepted);
  EXPECT_EQ(other.remove("key 0"), 1);
  EXPECT_EQ(other.add("sum", 1), 1);
}

TEST(StoreServer, AClientThatDoesNotReadFillsNoMemoryAndHoldsNobodyUp) {
  StoreServer server({.most_held = Bytes{64 << 20}});
  RawClient other(server);
  other.set("large", std::string(4 << 20, 'x'));
  EXPECT_EQ(other.num_keys(), 1);
  RawClient asks_only(server);
  std::string many;
  for (int i = 0; i < 1000; ++i) many += query(kGet) + text("large");
  EXPECT_TRUE(asks_only.send(many));
  RawClient watches_only(server);
  ASSERT_TRUE(watches_only.watch("changing"));
  for (int i = 0; i < 40; ++i) {
    other.set("changing", std::string(4 << 20, static_cast<char>('a' + i % 26)));
    ASSERT_EQ(other.num_keys(), 2);
  }
  expect_alive(server);
  // The first is merely slow, and gets all it asked for when it reads.
  EXPECT_EQ(asks_only.receive_text().size(), std::size_t{4} << 20);
}

TEST(StoreServer, ClientsThatLeaveInTheMiddleAreForgotten) {
  StoreServer server;
  for (int i = 0; i < 50; ++i) {
    RawClient waiter(server);
    waiter.begin_wait({"later"});
    RawClient watcher(server);
    watcher.send(query(kWatch) + text("later"));
    RawClient half(server);
    half.send(query(kSet) + text("later") + number(100) + "only a part");
  }
  RawClient client(server);
  client.set("later", "now");
  EXPECT_EQ(client.get("later"), "now");
}

TEST(StoreServer, EndsPromptlyWithClientsConnected) {
  auto server = std::make_unique<StoreServer>();
  RawClient idle(*server);
  RawClient waiter(*server);
  waiter.begin_wait({"never"});
  RawClient half(*server);
  half.send(query(kSet) + number(5));
  EXPECT_EQ(idle.num_keys(), 0);
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(idle.is_dropped());
  EXPECT_TRUE(waiter.is_dropped());
}

}  // namespace
}  // namespace tutti
