#include <tutti/transport/store_server.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;

// What a client can ask, by the byte that a query begins with. A text is its length in 8 bytes and then itself, a
// number 8 bytes; all in the machine's own byte order.
enum class Query : std::uint8_t {
  set,          // key, value                   no answer
  compare_set,  // key, expected, desired       the value that it has now
  get,          // key                          its value
  add,          // key, number                  the sum, as a number
  check,        // how many, keys               Availability
  wait,         // how many, keys               a byte of 0, once all are there
  num_keys,     //                              a number
  watch_key,    // key                          a Change, and one for each change from then on
  delete_key,   // key                          how many were deleted, as a number
};
constexpr std::uint8_t kQueries = 9;

enum class Availability : std::uint8_t { ready, not_ready };
constexpr char kStopWaiting = 0;

// What a watcher is told, followed by the key, the old value and the new one, except where it says `registered`.
enum class Change : std::uint8_t { updated, created, deleted, registered };

constexpr std::size_t kMostKeysPerQuery = 65536;
constexpr std::size_t kReadAtOnce = 65536;
// With so much unsent a client is asked nothing more until it has read some of it.
constexpr std::size_t kEnoughUnsent = 1 << 20;

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }

  int get() const { return value_; }

 private:
  int value_;
};

enum class Progress { incomplete, complete, refused };

// A query, put together from pieces as they come in. A length is believed only as far as bytes follow it.
class QueryReader {
 public:
  explicit QueryReader(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Takes bytes off the front until the query is complete.
  Progress take(std::string_view& bytes) {
    while (next_ != Next::nothing) {
      const Progress progress = take_part(bytes);
      if (progress != Progress::complete) return progress;
    }
    return Progress::complete;
  }

  void begin_next() { *this = QueryReader(most_bytes_); }

  Query query() const { return query_; }
  std::vector<std::string>& texts() { return texts_; }
  std::int64_t number() const { return number_; }
  std::size_t size() const { return size_; }

 private:
  enum class Next { query, count, length, text, number, nothing };

  Progress take_part(std::string_view& bytes) {
    switch (next_) {
      case Next::query: return take_query(bytes);
      case Next::count: {
        if (!take_word(bytes)) return Progress::incomplete;
        if (word_ > kMostKeysPerQuery) return Progress::refused;
        texts_missing_ = static_cast<std::size_t>(word_);
        next_ = after_text();
        return Progress::complete;
      }
      case Next::length: {
        if (!take_word(bytes)) return Progress::incomplete;
        if (word_ > most_bytes_ - std::min(most_bytes_, size_)) return Progress::refused;
        length_ = static_cast<std::size_t>(word_);
        texts_.emplace_back();
        size_ += sizeof(std::string);
        next_ = Next::text;
        return Progress::complete;
      }
      case Next::text: {
        std::string& text = texts_.back();
        const std::size_t count = std::min(length_ - text.size(), bytes.size());
        text.append(bytes.substr(0, count));
        bytes.remove_prefix(count);
        size_ += count;
        if (text.size() < length_) return Progress::incomplete;
        --texts_missing_;
        next_ = after_text();
        return Progress::complete;
      }
      case Next::number: {
        if (!take_word(bytes)) return Progress::incomplete;
        number_ = static_cast<std::int64_t>(word_);
        next_ = Next::nothing;
        return Progress::complete;
      }
      case Next::nothing: break;
    }
    return Progress::complete;
  }

  Progress take_query(std::string_view& bytes) {
    if (bytes.empty()) return Progress::incomplete;
    const auto query = static_cast<std::uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    if (query >= kQueries) return Progress::refused;
    query_ = Query{query};
    switch (query_) {
      case Query::set: texts_missing_ = 2; break;
      case Query::compare_set: texts_missing_ = 3; break;
      case Query::get:
      case Query::add:
      case Query::watch_key:
      case Query::delete_key: texts_missing_ = 1; break;
      case Query::check:
      case Query::wait:
      case Query::num_keys: break;
    }
    next_ = query_ == Query::check || query_ == Query::wait ? Next::count : after_text();
    return Progress::complete;
  }

  Next after_text() const {
    if (texts_missing_ > 0) return Next::length;
    return query_ == Query::add ? Next::number : Next::nothing;
  }

  // The next 8 bytes, which may come one by one.
  bool take_word(std::string_view& bytes) {
    const std::size_t count = std::min(word_bytes_.size() - word_filled_, bytes.size());
    std::memcpy(word_bytes_.data() + word_filled_, bytes.data(), count);
    bytes.remove_prefix(count);
    word_filled_ += count;
    if (word_filled_ < word_bytes_.size()) return false;
    std::memcpy(&word_, word_bytes_.data(), sizeof word_);
    word_filled_ = 0;
    return true;
  }

  std::size_t most_bytes_;
  Next next_ = Next::query;
  Query query_ = Query::set;
  std::vector<std::string> texts_;
  std::size_t texts_missing_ = 0;
  std::size_t length_ = 0;
  std::int64_t number_ = 0;
  std::size_t size_ = 0;
  std::array<char, 8> word_bytes_{};
  std::size_t word_filled_ = 0;
  std::uint64_t word_ = 0;
};

struct Client {
  Client(Descriptor descriptor, std::size_t most_per_query) : socket(std::move(descriptor)), reader(most_per_query) {}

  Descriptor socket;
  std::string received;  // what was read, and not looked at yet
  QueryReader reader;
  std::string unsent;
  std::size_t sent = 0;  // of what is in `unsent`
  std::unordered_set<std::string> awaited;
  std::size_t awaited_cost = 0;
  std::unordered_set<std::string> watched;
  std::size_t counted = 0;  // of this in Loop::under_way_
  bool gone = false;

  std::size_t to_send() const { return unsent.size() - sent; }
  std::size_t held() const { return received.size() + reader.size() + unsent.size() + awaited_cost; }

  void answer_byte(std::uint8_t byte) { unsent.push_back(static_cast<char>(byte)); }
  void answer_number(std::int64_t number) { unsent.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void answer_text(std::string_view text) {
    answer_number(static_cast<std::int64_t>(text.size()));
    unsent.append(text);
  }
};

// What a key takes, with the tables around it.
std::size_t cost(std::string_view key, std::string_view value) { return key.size() + value.size() + 128; }

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc{} || rest != end) return std::nullopt;
  return number;
}

[[noreturn]] void refuse(const StoreServerOptions& options, std::string_view problem) {
  throw UsageError(
      fmt::format("a store cannot be served at '{}', port {}: {}", options.address, options.port, problem));
}

Descriptor listen_at(const StoreServerOptions& options) {
  if (options.port < 0 || options.port > 65535) refuse(options, "a port is a whole number from 0 to 65535");
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(options.port);
  if (options.address.empty()) refuse(options, "the address is empty");
  if (const int code = ::getaddrinfo(options.address.c_str(), port.c_str(), &hints, &found); code != 0)
    refuse(options, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> result(found, ::freeaddrinfo);
  Descriptor listener(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  // So that a port can be taken again at once; it cannot be taken from somebody who listens.
  if (listener.get() < 0 || ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
    refuse(options, std::generic_category().message(errno));
  return listener;
}

}  // namespace

class StoreServer::Loop {
 public:
  explicit Loop(const StoreServerOptions& options)
      : options_(options), listener_(listen_at(options)), stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (stop_.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> service{};
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host.data(), host.size(), service.data(),
                      service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
      refuse(options, "it cannot be told where it listens");
    address_ = host.data();
    port_ = static_cast<std::uint16_t>(std::stoi(service.data()));
    // The process's signals are for its own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  ~Loop() {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }

 private:
  void run() {
    std::vector<pollfd> events;
    for (;;) {
      // Where no connection can be taken for want of descriptors, the listener would stay readable.
      events.assign({{stop_.get(), POLLIN, 0}, {accepting_ ? listener_.get() : -1, POLLIN, 0}});
      for (const auto& client : clients_) {
        short wanted = 0;
        if (client->received.empty() && client->to_send() < kEnoughUnsent) wanted |= POLLIN;
        if (client->to_send() > 0) wanted |= POLLOUT;
        events.push_back({client->socket.get(), wanted, 0});
      }
      const int ready = ::poll(events.data(), events.size(), accepting_ ? -1 : 100);
      if (ready < 0 && errno != EINTR && errno != EAGAIN && errno != ENOMEM) return;
      if (events[0].revents != 0) return;
      const std::size_t known = clients_.size();
      if (events[1].revents != 0 || !accepting_) accept_all();
      for (std::size_t i = 0; ready > 0 && i < known; ++i) {
        if (events[i + 2].revents != 0) serve(*clients_[i], events[i + 2].revents);
      }
      forget_those_gone();
    }
  }

  void accept_all() {
    for (;;) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() < 0) {
        accepting_ = errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
        if (errno != EINTR && errno != ECONNABORTED) return;
        continue;
      }
      const int yes = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      clients_.push_back(std::make_unique<Client>(std::move(socket), options_.most_per_query.value));
    }
  }

  void serve(Client& client, short events) {
    try {
      if (client.received.empty() && (events & (POLLIN | POLLHUP | POLLERR)) != 0) receive(client);
      // What was asked before the answers piled up is looked at when they have been sent.
      do {
        answer(client);
        send(client);
      } while (!client.gone && !client.received.empty() && client.to_send() < kEnoughUnsent);
    } catch (const std::bad_alloc&) {
      client.gone = true;
    }
    count(client);
  }

  void receive(Client& client) {
    std::array<char, kReadAtOnce> buffer;
    const ssize_t count = ::recv(client.socket.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      client.received.assign(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      client.gone = true;
    }
  }

  void answer(Client& client) {
    std::string_view bytes = client.received;
    while (!client.gone && !bytes.empty() && client.to_send() < kEnoughUnsent) {
      const Progress progress = client.reader.take(bytes);
      if (progress == Progress::incomplete) break;
      if (progress == Progress::refused || !answer_query(client)) {
        client.gone = true;
        break;
      }
      client.reader.begin_next();
    }
    client.received.erase(0, client.received.size() - bytes.size());
    count(client);
    if (stored_ + under_way_ > options_.most_held.value) client.gone = true;
  }

  void send(Client& client) {
    while (!client.gone && client.to_send() > 0) {
      const ssize_t count =
          ::send(client.socket.get(), client.unsent.data() + client.sent, client.to_send(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count < 0) client.gone = true;
      if (count > 0) client.sent += static_cast<std::size_t>(count);
    }
    if (client.to_send() == 0) {
      client.unsent = {};
      client.sent = 0;
    } else if (client.sent > kEnoughUnsent) {
      client.unsent.erase(0, std::exchange(client.sent, 0));
    }
  }

  // False where the client asked what has no answer.
  bool answer_query(Client& client) {
    std::vector<std::string>& texts = client.reader.texts();
    // A client that asks something else has given up its wait, and would take the answer to that for one to this.
    stop_waiting(client);
    switch (client.reader.query()) {
      case Query::set: return put(texts[0], std::move(texts[1]));
      case Query::compare_set: return compare_set(client, texts[0], texts[1], std::move(texts[2]));
      case Query::get: {
        const auto found = values_.find(texts[0]);
        if (found == values_.end()) return false;
        client.answer_text(found->second);
        return true;
      }
      case Query::add: return add(client, texts[0], client.reader.number());
      case Query::check:
        client.answer_byte(
            static_cast<std::uint8_t>(missing(texts).empty() ? Availability::ready : Availability::not_ready));
        return true;
      case Query::wait:
        client.awaited = missing(texts);
        client.awaited_cost = 0;
        for (const std::string& key : client.awaited) {
          waiters_[key].insert(&client);
          client.awaited_cost += 2 * cost(key, "");
        }
        if (client.awaited.empty()) client.answer_byte(kStopWaiting);
        return true;
      case Query::num_keys: client.answer_number(static_cast<std::int64_t>(values_.size())); return true;
      case Query::watch_key:
        watchers_[texts[0]].insert(&client);
        if (client.watched.insert(texts[0]).second) stored_ += 2 * cost(texts[0], "");
        client.answer_byte(static_cast<std::uint8_t>(Change::registered));
        return true;
      case Query::delete_key: remove(client, texts[0]); return true;
    }
    return false;
  }

  bool compare_set(Client& client, const std::string& key, const std::string& expected, std::string desired) {
    const auto found = values_.find(key);
    const bool matches = found == values_.end() ? expected.empty() : found->second == expected;
    if (matches && !put(key, std::move(desired))) return false;
    // c10d's answer where there is no such key, and one was expected, is what was expected.
    const auto now = values_.find(key);
    client.answer_text(now == values_.end() ? expected : now->second);
    return true;
  }

  bool add(Client& client, const std::string& key, std::int64_t number) {
    if (const auto found = values_.find(key); found != values_.end()) {
      const std::optional<std::int64_t> before = parse_number(found->second);
      if (!before) return false;
      // In unsigned numbers, whose overflow is defined.
      number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(*before));
    }
    client.answer_number(number);
    return put(key, std::to_string(number));
  }

  void remove(Client& client, const std::string& key) {
    const auto found = values_.find(key);
    const bool is_there = found != values_.end();
    if (is_there) {
      tell_watchers(key, Change::deleted, found->second, "");
      stored_ -= cost(key, found->second);
      values_.erase(found);
    }
    client.answer_number(is_there ? 1 : 0);
  }

  // False where there is no room for it.
  bool put(const std::string& key, std::string value) {
    const auto found = values_.find(key);
    const bool is_new = found == values_.end();
    const std::size_t before = is_new ? 0 : cost(key, found->second);
    if (stored_ - before + cost(key, value) > options_.most_held.value) return false;
    stored_ += cost(key, value) - before;
    std::string& place = is_new ? values_[key] : found->second;
    const std::string old = std::exchange(place, std::move(value));
    release_waiters(key);
    tell_watchers(key, is_new ? Change::created : Change::updated, old, place);
    return true;
  }

  std::unordered_set<std::string> missing(const std::vector<std::string>& keys) const {
    std::unordered_set<std::string> result;
    for (const std::string& key : keys) {
      if (!values_.contains(key)) result.insert(key);
    }
    return result;
  }

  void release_waiters(const std::string& key) {
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) return;
    for (Client* client : found->second) {
      client->awaited.erase(key);
      if (!client->awaited.empty()) continue;
      client->awaited_cost = 0;
      client->answer_byte(kStopWaiting);
      count(*client);
    }
    waiters_.erase(found);
  }

  void tell_watchers(const std::string& key, Change change, const std::string& old, std::string_view now) {
    const auto found = watchers_.find(key);
    if (found == watchers_.end()) return;
    for (Client* client : found->second) {
      // One that does not read what it watches must not fill the memory.
      client->gone = client->gone || stored_ + under_way_ + old.size() + now.size() > options_.most_held.value;
      if (client->gone) continue;
      client->answer_byte(static_cast<std::uint8_t>(change));
      client->answer_text(key);
      client->answer_text(old);
      client->answer_text(now);
      count(*client);
    }
  }

  void stop_waiting(Client& client) {
    for (const std::string& key : client.awaited) leave(waiters_, key, client);
    client.awaited.clear();
    client.awaited_cost = 0;
  }

  using Interested = std::unordered_map<std::string, std::unordered_set<Client*>>;

  static void leave(Interested& interested, const std::string& key, Client& client) {
    const auto found = interested.find(key);
    if (found == interested.end()) return;
    found->second.erase(&client);
    if (found->second.empty()) interested.erase(found);
  }

  void count(Client& client) {
    under_way_ += client.held() - client.counted;
    client.counted = client.held();
  }

  void forget_those_gone() {
    std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
      if (!client->gone) return false;
      stop_waiting(*client);
      for (const std::string& key : client->watched) {
        leave(watchers_, key, *client);
        stored_ -= 2 * cost(key, "");
      }
      under_way_ -= client->counted;
      return true;
    });
  }

  StoreServerOptions options_;
  Descriptor listener_;
  Descriptor stop_;
  std::string address_;
  std::uint16_t port_ = 0;

  // From here on only the thread's.
  bool accepting_ = true;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unordered_map<std::string, std::string> values_;
  Interested waiters_;
  Interested watchers_;
  std::size_t stored_ = 0;     // bytes of keys and values
  std::size_t under_way_ = 0;  // bytes in the clients' buffers

  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options) : loop_(std::make_unique<Loop>(options)) {}
StoreServer::~StoreServer() = default;

const std::string& StoreServer::address() const { return loop_->address(); }
std::uint16_t StoreServer::port() const { return loop_->port(); }

}  // namespace tutti
