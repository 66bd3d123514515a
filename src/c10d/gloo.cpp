#include "gloo.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/transport/unbound_buffer.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tutti/base/assert.hpp>
#include <tutti/base/error.hpp>

namespace tutti::c10d {
namespace {

using namespace std::chrono_literals;

std::chrono::milliseconds milliseconds(Deadline deadline) {
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

// Of what torch throws: where in torch it was follows.
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::vector<Rank> others(const GlooOptions& options) {
  std::vector<Rank> ranks;
  for (Rank rank : all_ranks(options.size)) {
    if (rank != options.rank) ranks.push_back(rank);
  }
  return ranks;
}

// --- the store ---

class TcpStore final : public Store {
 public:
  explicit TcpStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  std::int64_t add(const std::string& key) override { return store_->add(key, 1); }
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  bool has(const std::string& key) override { return store_->check({key}); }

  const c10::intrusive_ptr<::c10d::Store>& handle() const { return store_; }

 private:
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
  ::gloo::Context& context() { return *contexts_.front(); }
};

// Frames over one of Gloo's connections. Gloo delivers a message into memory that was offered for it beforehand, and
// ends the process where the message is longer. So there is room on offer for kFrames frames of the greatest length at
// any time, the writer has no more than that on their way, and whoever reads tells how many it took.
class GlooLink final : public Link {
 public:
  GlooLink(c10::intrusive_ptr<Group> group, int peer)
      : group_(std::move(group)),
        peer_(peer),
        outgoing_(kFrames * kFrameBytes),
        incoming_(kFrames * kFrameBytes),
        sender_(group_->context().createUnboundBuffer(outgoing_.data(), outgoing_.size())),
        receiver_(group_->context().createUnboundBuffer(incoming_.data(), incoming_.size())) {}

  ~GlooLink() override {
    if (!listener_.joinable()) return;
    stopping_.store(true);
    receiver_->abortWaitRecv();
    listener_.join();
  }

  void start(std::function<void()> ring) override {
    ring_ = std::move(ring);
    for (std::uint64_t i = 0; i < kFrames; ++i) offer(i);
    listener_ = std::thread([this] { listen(); });
  }

  std::size_t most_body_bytes() const override { return kMostBodyBytes; }

  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override {
    look_for_acknowledgements();
    if (written_ - acknowledged_ >= kFrames - kReserved) return false;
    send(head, body);
    return true;
  }

  bool stirred() const noexcept override { return arrived_.load() != popped_.load(); }

  std::span<const std::byte> front() override {
    while (popped_.load(std::memory_order_relaxed) != arrived_.load()) {
      if (is_end()) return {};
      const std::byte* frame = place(incoming_, popped_.load(std::memory_order_relaxed));
      const Prefix prefix = prefix_of(frame);
      if (prefix.bytes != 0) return {frame + sizeof prefix, prefix.bytes};
      pop();
    }
    return {};
  }

  void pop() override {
    look_for_acknowledgements();
    const std::uint64_t frame = popped_.load(std::memory_order_relaxed);
    offer(frame);
    popped_.store(frame + 1);
    if (frame + 1 - told_ >= kFrames / 2 && written_ - acknowledged_ < kFrames) send({}, {});
  }

  std::optional<std::string> closed() override {
    if (!is_end()) return std::nullopt;
    return "has died: its connection closed";
  }

 private:
  // Ahead of each frame.
  struct Prefix {
    std::uint64_t bytes = 0;         // of the frame; 0 where all there is to say is how many frames were taken
    std::uint64_t acknowledged = 0;  // frames that the writer has taken out of the other direction
  };
  static_assert(sizeof(Prefix) + kHeadBytes == kBodyAlignment);

  static constexpr std::uint64_t kFrames = 24;
  // For frames that only acknowledge: each side can always send them, however many of its own wait for the other's.
  static constexpr std::uint64_t kReserved = 4;
  static constexpr std::size_t kMostBodyBytes = 256 * 1024;
  static constexpr std::size_t kFrameBytes = kBodyAlignment + kMostBodyBytes;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  static constexpr std::uint64_t kSlot = 0x7475747469;  // what Gloo matches messages by; its own calls use others

  struct AlignedMemory {
    explicit AlignedMemory(std::size_t bytes)
        : bytes_(bytes), memory_(static_cast<std::byte*>(std::aligned_alloc(kBodyAlignment, bytes))) {
      if (memory_ == nullptr) throw std::bad_alloc();
    }
    ~AlignedMemory() { std::free(memory_); }
    AlignedMemory(const AlignedMemory&) = delete;
    AlignedMemory& operator=(const AlignedMemory&) = delete;
    std::byte* data() { return memory_; }
    std::size_t size() const { return bytes_; }

   private:
    std::size_t bytes_;
    std::byte* memory_;
  };

  static std::byte* place(AlignedMemory& memory, std::uint64_t frame) {
    return memory.data() + frame % kFrames * kFrameBytes;
  }

  // The listener counts the end as one that arrived, so that everybody looks.
  bool is_end() const { return popped_.load(std::memory_order_relaxed) == end_.load(); }

  static Prefix prefix_of(const std::byte* frame) {
    Prefix prefix;
    std::memcpy(&prefix, frame, sizeof prefix);
    return prefix;
  }

  // Also in frames that are not at the front yet: whoever is at the front may wait for room to write.
  void look_for_acknowledgements() {
    const std::uint64_t frames = std::min(arrived_.load(), end_.load());
    for (seen_ = std::max(seen_, popped_.load(std::memory_order_relaxed)); seen_ < frames; ++seen_) {
      acknowledged_ = std::max(acknowledged_, prefix_of(place(incoming_, seen_)).acknowledged);
    }
  }

  void send(std::span<const std::byte> head, std::span<const std::byte> body) {
    told_ = popped_.load(std::memory_order_relaxed);
    const Prefix prefix{.bytes = head.size() + body.size(), .acknowledged = told_};
    TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
    std::byte* frame = place(outgoing_, written_);
    std::memcpy(frame, &prefix, sizeof prefix);
    if (!head.empty()) std::memcpy(frame + sizeof prefix, head.data(), head.size());
    if (!body.empty()) std::memcpy(frame + kBodyAlignment, body.data(), body.size());
    try {
      sender_->send(peer_, kSlot, written_ % kFrames * kFrameBytes, sizeof prefix + prefix.bytes);
    } catch (const ::gloo::Exception&) {
      // The connection is closed, which the listener tells.
    }
    ++written_;
  }

  void offer(std::uint64_t frame) {
    try {
      receiver_->recv(peer_, kSlot, frame % kFrames * kFrameBytes, kFrameBytes);
    } catch (const ::gloo::Exception&) {
    }
  }

  void listen() {
    // A wait of Gloo's that times out closes all connections: deadlines are for those above.
    constexpr auto kForEver = std::chrono::hours(24 * 365);
    for (;;) {
      try {
        if (!receiver_->waitRecv(nullptr, kForEver)) {
          if (stopping_.load()) return;
          continue;
        }
      } catch (const std::exception&) {
        end_.store(arrived_.load());
      }
      arrived_.fetch_add(1);
      ring_();
      if (end_.load() != kNoEnd) return;
    }
  }

  const c10::intrusive_ptr<Group> group_;
  const int peer_;
  AlignedMemory outgoing_;
  AlignedMemory incoming_;
  const std::unique_ptr<::gloo::transport::UnboundBuffer> sender_;
  const std::unique_ptr<::gloo::transport::UnboundBuffer> receiver_;
  std::uint64_t written_ = 0;
  std::uint64_t acknowledged_ = 0;  // of those written
  std::uint64_t told_ = 0;          // of those popped, what the peer was told
  std::uint64_t seen_ = 0;          // frames whose acknowledgements were looked at
  std::atomic<std::uint64_t> popped_{0};
  std::atomic<std::uint64_t> arrived_{0};
  std::atomic<std::uint64_t> end_{kNoEnd};  // how many frames there were in all, once the connection has closed
  std::atomic<bool> stopping_{false};
  std::function<void()> ring_;
  std::thread listener_;
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

c10::intrusive_ptr<Group> make_group(const GlooOptions& options, const GivenUp& given_up, Deadline deadline) {
  // Once all have left their addresses, connecting takes no time; but Gloo does not notice when one dies meanwhile.
  constexpr std::chrono::milliseconds kConnecting = 5s;
  auto gloo_options = ::c10d::ProcessGroupGloo::Options::create(std::min(kConnecting, milliseconds(deadline)));
  gloo_options->devices.push_back(device_for(options.interface));
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

  // Elsewhere, because Gloo waits for a while where one dies while they connect.
  void connect(const std::function<bool()>& given_up, Deadline deadline) {
    if (!connecting_.valid()) {
      connecting_ = std::async(std::launch::async, [options = options_, abandoned = abandoned_, deadline] {
        return make_group(
            options, [abandoned] { return abandoned->load(); }, deadline);
      });
    }
    while (connecting_.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      if (!given_up() && !deadline.passed()) continue;
      abandoned_->store(true);
      throw Error("somebody gave up");
    }
    group_ = connecting_.get();
  }

  [[noreturn]] void fail(Deadline deadline, std::string_view why) const {
    if (deadline.passed()) {
      throw PeerError({FailureKind::late, others(options_), "Gloo's all-reduce did not end in time"});
    }
    throw PeerError(
        {FailureKind::lost, others(options_), fmt::format("Gloo's all-reduce failed: {}", first_line(why))});
  }

  const GlooOptions options_;
  c10::intrusive_ptr<Group> group_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  std::future<c10::intrusive_ptr<Group>> connecting_;  // waits for it when it goes
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
    return std::make_shared<TcpStore>(c10::make_intrusive<::c10d::PrefixStore>(place.prefix + "/tutti", store));
  } catch (const std::exception& error) {
    throw PeerError({FailureKind::late,
                     {Rank{0}},
                     fmt::format("nobody answers at {}:{}, where the ranks are to meet", place.host, place.port)});
  }
}

std::vector<std::unique_ptr<Link>> connect_gloo(const GlooOptions& options, Deadline deadline) {
  c10::intrusive_ptr<Group> group;
  try {
    group = make_group(
        options, [] { return false; }, deadline);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(
        {FailureKind::late, others(options),
         fmt::format("the ranks could not connect on {}: {}", options.interface, first_line(error.what()))});
  }
  std::vector<std::unique_ptr<Link>> links(static_cast<std::size_t>(options.size));
  for (Rank peer : all_ranks(options.size)) {
    if (peer == options.rank) continue;
    links[static_cast<std::size_t>(peer.value)] = std::make_unique<GlooLink>(group, peer.value);
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
