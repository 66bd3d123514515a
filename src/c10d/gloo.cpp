#include "gloo.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <net/if.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tutti/base/error.hpp>

#include "aside.hpp"
#include "gloo_link.hpp"

namespace tutti::c10d {
namespace {

using namespace std::chrono_literals;

std::chrono::milliseconds milliseconds(Deadline deadline) {
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

// Of what torch throws: where in torch it was follows.
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

// --- the store ---

class TcpStore final : public Store {
 public:
  TcpStore(StorePlace place, c10::intrusive_ptr<::c10d::Store> store)
      : place_(std::move(place)), store_(std::move(store)) {}

  std::int64_t add(const std::string& key) override {
    return attempt([&] { return store_->add(key, 1); });
  }
  void set(const std::string& key, const std::string& value) override {
    attempt([&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  bool has(const std::string& key) override {
    return attempt([&] { return store_->check({key}); });
  }
  std::string get(const std::string& key) override {
    return attempt([&] {
      const std::vector<std::uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    });
  }

  const c10::intrusive_ptr<::c10d::Store>& handle() const { return store_; }

 private:
  template <typename Call>
  auto attempt(Call&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      throw PeerError(
          failure_at(place_, FailureKind::lost, fmt::format("does not answer: {}", first_line(error.what()))));
    }
  }

  const StorePlace place_;
  const c10::intrusive_ptr<::c10d::Store> store_;
};

// --- links ---

using GivenUp = std::function<bool()>;

// Where ranks that connect wait for each other's addresses: until the deadline, or until somebody gives up.
class WatchfulStore final : public ::c10d::Store {
 public:
  WatchfulStore(c10::intrusive_ptr<::c10d::Store> store, GivenUp given_up, Deadline deadline)
      : store_(std::move(store)), given_up_(std::move(given_up)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override { store_->set(key, value); }
  std::vector<std::uint8_t> get(const std::string& key) override {
    wait({key});
    return store_->get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override {
    for (Duration pause = 200us; !store_->check(keys); pause = std::min<Duration>(2 * pause, 20ms)) {
      if (given_up_()) throw Error("somebody gave up");
      if (deadline_.passed()) throw Error("not all came in time");
      std::this_thread::sleep_for(pause);
    }
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  const c10::intrusive_ptr<::c10d::Store> store_;
  const GivenUp given_up_;
  const Deadline deadline_;
};

// The process group, for its connections.
class Group final : public ::c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  // One for each of the connections.
  ::gloo::Context& context(std::size_t which = 0) { return *contexts_.at(which); }
};

bool is_interface(const std::string& name) { return ::if_nametoindex(name.c_str()) != 0; }

std::shared_ptr<::gloo::transport::Device> device_for(const std::string& interface) {
  try {
    return is_interface(interface) ? ::c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                   : ::c10d::ProcessGroupGloo::createDeviceForHostname(interface);
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("'{}' is neither a network interface nor an address of this host", interface));
  }
}

// Gloo does not notice when somebody dies while they connect, and waits for a while, or for ever where the timeout is
// 0.
c10::intrusive_ptr<Group> make_group(const GlooOptions& options, int connections, std::chrono::milliseconds timeout,
                                     const GivenUp& given_up, Deadline deadline) {
  auto gloo_options = ::c10d::ProcessGroupGloo::Options::create(timeout);
  for (int i = 0; i < connections; ++i) gloo_options->devices.push_back(device_for(options.interface));
  gloo_options->threads = 1;
  const auto& store = static_cast<const TcpStore&>(*options.store);
  return c10::make_intrusive<Group>(
      c10::make_intrusive<::c10d::PrefixStore>(options.prefix,
                                               c10::make_intrusive<WatchfulStore>(store.handle(), given_up, deadline)),
      options.rank.value, options.size, gloo_options);
}

// --- Gloo's own collectives ---

std::optional<at::ScalarType> scalar_type(DataType type) {
  switch (type) {
    case DataType::float32: return at::kFloat;
    case DataType::float64: return at::kDouble;
    case DataType::float16: return at::kHalf;
    case DataType::int32: return at::kInt;
    case DataType::int64: return at::kLong;
    case DataType::bfloat16: break;  // Gloo has none
  }
  return std::nullopt;
}

::c10d::ReduceOp reduce_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return ::c10d::ReduceOp::MIN;
    case ReduceOp::max: return ::c10d::ReduceOp::MAX;
    default: return ::c10d::ReduceOp::SUM;
  }
}

class GlooCalls final : public EngineCalls {
 public:
  explicit GlooCalls(GlooOptions options) : options_(std::move(options)) {}

  bool can_all_reduce(DataType type) const override { return scalar_type(type).has_value(); }

  // On a copy: Gloo cannot be made to let go of memory before its own timeout, and ours may be wanted back at once.
  void all_reduce(Array data, ReduceOp op, const std::function<bool()>& given_up, Deadline deadline) override {
    c10::intrusive_ptr<::c10d::Work> work;
    std::vector<at::Tensor> tensors;
    try {
      if (!group_) connect(given_up, deadline);
      tensors.push_back(at::empty({static_cast<std::int64_t>(data.length())}, *scalar_type(data.type())));
      std::memcpy(tensors[0].data_ptr(), data.data(), data.bytes());
      ::c10d::AllreduceOptions how;
      how.reduceOp = reduce_op(op);
      // libtorch looks at the context's, not at the one in the options.
      group_->context().setTimeout(milliseconds(deadline));
      work = group_->allreduce(tensors, how);
      while (!wait(*work, kLook)) {
        if (!given_up() && !deadline.passed()) continue;
        // Its thread ends at the timeout, or with the process; to wait for that would be to hang.
        static_cast<void>(group_.release());
        throw Error("somebody gave up");
      }
    } catch (const std::exception& error) {
      fail(deadline, error.what());
    }
    std::memcpy(data.data(), tensors[0].data_ptr(), data.bytes());
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  // False where it is not through yet; throws where it failed.
  static bool wait(::c10d::Work& work, std::chrono::milliseconds patience) {
    try {
      return work.wait(patience);
    } catch (const std::exception&) {
      if (!work.isCompleted()) return false;
    }
    return work.wait();
  }

  void connect(const std::function<bool()>& given_up, Deadline deadline) {
    static constexpr std::chrono::milliseconds kConnecting = 5s;
    const auto abandoned = std::make_shared<std::atomic<bool>>(false);
    Aside<c10::intrusive_ptr<Group>> connecting([options = options_, abandoned, deadline] {
      return make_group(
          options, /*connections=*/1, std::min(kConnecting, milliseconds(deadline)),
          [abandoned] { return abandoned->load(); }, deadline);
    });
    while (!connecting.is_through(Deadline::after(1ms))) {
      if (!given_up() && !deadline.passed()) continue;
      abandoned->store(true);
      throw Error("somebody gave up");
    }
    group_ = connecting.result();
  }

  [[noreturn]] void fail(Deadline deadline, std::string_view why) const {
    if (deadline.passed()) {
      throw PeerError(
          {FailureKind::late, all_ranks_but(options_.rank, options_.size), "Gloo's all-reduce did not end in time"});
    }
    throw PeerError({FailureKind::lost, all_ranks_but(options_.rank, options_.size),
                     fmt::format("Gloo's all-reduce failed: {}", first_line(why))});
  }

  const GlooOptions options_;
  c10::intrusive_ptr<Group> group_;
};

}  // namespace

std::shared_ptr<Store> connect_store(const StorePlace& place, Deadline deadline) {
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = milliseconds(deadline);
  try {
    auto store = c10::make_intrusive<::c10d::TCPStore>(place.host, options);
    return std::make_shared<TcpStore>(place, c10::make_intrusive<::c10d::PrefixStore>(place.prefix + "/tutti", store));
  } catch (const std::exception& error) {
    throw PeerError(
        failure_at(place, FailureKind::late, fmt::format("cannot be reached: {}", first_line(error.what()))));
  }
}

std::vector<std::unique_ptr<Link>> connect_gloo(const GlooOptions& options, const std::function<bool()>& given_up,
                                                Deadline deadline) {
  c10::intrusive_ptr<Group> group;
  try {
    // Timeouts of Gloo's close connections on which nothing comes for a while.
    constexpr std::chrono::milliseconds kNone{0};
    group = make_group(options, /*connections=*/2, kNone, given_up, deadline);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(
        {FailureKind::late, all_ranks_but(options.rank, options.size),
         fmt::format("the ranks could not connect on {}: {}", options.interface, first_line(error.what()))});
  }
  const auto keep = std::make_shared<c10::intrusive_ptr<Group>>(group);
  std::vector<std::unique_ptr<Link>> links(static_cast<std::size_t>(options.size));
  for (Rank peer : all_ranks(options.size)) {
    if (peer == options.rank) continue;
    // Each rank reads where the other writes.
    const std::size_t to_read = options.rank < peer ? 1 : 0;
    links[static_cast<std::size_t>(peer.value)] = std::make_unique<GlooLink>(
        keep, *group->context(1 - to_read).getPair(peer.value), *group->context(to_read).getPair(peer.value));
  }
  return links;
}

EngineFactory gloo_calls(const GlooOptions& options) {
  return [options](const EngineWorld& world) -> std::unique_ptr<EngineCalls> {
    GlooOptions here = options;
    here.prefix = fmt::format("{}/calls/{}", options.prefix, world.id);
    here.rank = world.rank;
    here.size = world.size;
    return std::make_unique<GlooCalls>(std::move(here));
  };
}

}  // namespace tutti::c10d
