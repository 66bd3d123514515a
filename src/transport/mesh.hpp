// One process of a job, and its links to the others. It carries frames for all worlds that this process is in, and
// notices when another process dies, stops or is cut off.
//
// One mutex guards everything here and in the worlds. Whoever waits polls the links meanwhile; when nobody waits, a
// thread of the mesh does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/transport/link.hpp>
#include <tutti/transport/transport.hpp>

#include "doorbell.hpp"
#include "frame.hpp"
#include "memory_link.hpp"
#include "segment.hpp"

namespace tutti::processes {

class Mesh;
class World;
struct Incoming;

// A message on its way out.
struct Outgoing {
  std::uint64_t id = 0;
  std::uint64_t number = 0;  // in the order in which they were started
  int peer = 0;
  std::uint64_t world = 0;
  Tag tag = {};
  const std::byte* payload = nullptr;
  std::uint64_t length = 0;
  std::uint64_t written = 0;  // bytes that went into the link
  Link* lent_to = nullptr;    // that they went into
  std::uint64_t loan = 0;     // what that had been lent by then: when it returned as much, it has all of this
  bool flows = false;         // it was asked for, and is not through
  bool done = false;          // the payload is not needed any more
  bool in_use = false;
};

struct Peer {
  std::unique_ptr<Link> wire;  // none to ourselves
  std::unique_ptr<Link> memory_owner;
  std::atomic<Link*> memory{nullptr};        // where both share memory; then messages go through it
  bool held = false;                         // somebody reads the frame at the front of `path()` without the lock
  std::deque<std::vector<std::byte>> queue;  // frames that found no room, for `path()`
  std::deque<std::uint64_t> flowing;         // ids of outgoing messages that flow
  std::deque<std::uint64_t> lent;            // and of those that went in and are not returned
  std::unordered_map<std::uint64_t, Incoming*> announced;  // messages to us that are not through
  bool closing = false;                                    // pieces need not wait for readers any more
  std::optional<Deadline> piece_waits;                     // until when the piece at the front may wait for its reader
  Locality locality = Locality::remote;
  Deadline::Clock::time_point heard{};
  bool gone = false;
  std::string why_gone = {};  // once it is, or has said goodbye
  bool said_goodbye = false;
  bool heard_our_goodbye = false;

  Link& path() {
    Link* shared = memory.load(std::memory_order_acquire);
    return shared != nullptr ? *shared : *wire;
  }
};

struct MeshOptions {
  Rank rank;
  std::vector<std::unique_ptr<Link>> wires;  // by rank
  Duration heartbeat;
};

class Mesh {
 public:
  explicit Mesh(MeshOptions options);
  // Tells the others that it goes, and waits for a moment until they have heard it.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  std::mutex& mutex() { return mutex_; }

  // From now on messages to these peers go through `segment`, in which everybody of `members` has its place. They share
  // so many cores.
  void share_memory(Segment segment, const std::vector<int>& members, int cores);
  static std::size_t segment_bytes(std::size_t members);
  Locality locality(int peer) const {
    return peer == rank_ ? Locality::same_address_space : peers_[static_cast<std::size_t>(peer)].locality;
  }
  bool shares_memory_with(int peer) const {
    return peer == rank_ || peers_[static_cast<std::size_t>(peer)].memory.load() != nullptr;
  }
  // Everybody who shares memory, that is.
  bool has_a_core_for_each() const { return has_a_core_for_each_; }
  void ring(int peer) noexcept;
  void ring_own_threads() noexcept { bell_.load()->ring(); }

  // Waits until `ready`, which is called with the mutex held; `lock` is held before and after.
  template <typename Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Ready&& ready, Deadline deadline) {
    if (ready()) return true;
    lock.unlock();
    const bool in_time = wait_unlocked(
        [&] {
          const std::lock_guard guard(mutex_);
          poll(1);
          return ready();
        },
        deadline);
    lock.lock();
    return in_time;
  }

  // The same without the mutex, for what is looked at without it.
  template <typename Ready>
  bool wait_unlocked(Ready&& ready, Deadline deadline) {
    const Waiting waiting(*this);
    return bell_.load()->wait(
        [&] {
          if (has_news()) {
            const std::lock_guard guard(mutex_);
            poll(1);
          }
          return ready();
        },
        deadline, patience_);
  }

  // The rest with the mutex held.

  // Looks at all links and handles what has come. Wakes others that wait, of whom the caller may be one itself.
  void poll(int callers_waiting = 0);

  void post(int peer, const FrameHead& head, std::span<const std::byte> body = {});

  Outgoing& start_message(int peer);
  Outgoing& message(std::uint64_t id);
  void start_flowing(Outgoing& message);
  // From then on nobody reads its payload. Where it is not done, that may take a moment, and whoever does not take what
  // is on its way is lost then.
  void end_message(std::unique_lock<std::mutex>& lock, Outgoing& message);
  // All that were started in that world and not ended: nobody waits for them any more.
  void end_messages(std::unique_lock<std::mutex>& lock, std::uint64_t world);
  // The oldest of that world and tag that was announced to the peer and waits to be asked for; none where there is
  // none.
  Outgoing* find_announced(int peer, std::uint64_t world, Tag tag);

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void add_world(const std::shared_ptr<World>& world);
  void remove_world(std::uint64_t id);

  // An answer to a question that `ask` sent.
  std::uint64_t ask(int peer, std::uint64_t world);
  std::optional<std::uint64_t> answer(std::uint64_t question);
  void forget_question(std::uint64_t question) { questions_.erase(question); }

 private:
  // While a thread waits, the mesh's own thread keeps out of its way.
  class Waiting {
   public:
    explicit Waiting(Mesh& mesh) : mesh_(mesh) {
      mesh_.waiting_.fetch_add(1);
      mesh_.waits_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Waiting() { mesh_.waiting_.fetch_sub(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Mesh& mesh_;
  };

  bool has_news() const noexcept;
  bool drain(int rank, Link& link);
  // False where the frame must stay, because somebody is about to read it.
  bool handle(int rank, const Frame& frame);
  void pump(Peer& peer);
  static bool is_returned(const Outgoing& message) {
    return message.lent_to == nullptr || message.lent_to->returned() >= message.loan;
  }
  void lose(int rank, const std::string& why, bool clean);
  static void part_with(Peer& peer);
  void close_wires();
  void keep_house();
  bool piece_waits();
  void beat();

  const int rank_;
  const Duration heartbeat_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::map<std::uint64_t, std::weak_ptr<World>> worlds_;
  std::set<std::uint64_t> past_worlds_;
  // Frames for a world that this process is not in yet.
  std::map<std::uint64_t, std::vector<std::pair<int, std::vector<std::byte>>>> early_;
  std::deque<Outgoing> messages_;
  std::vector<std::uint32_t> free_messages_;
  std::uint64_t started_messages_ = 0;
  std::map<std::uint64_t, std::optional<std::uint64_t>> questions_;
  std::uint64_t last_question_ = 0;
  std::atomic<bool> wants_to_write_{false};  // some peer has frames or messages that found no room

  std::optional<Segment> segment_;
  std::vector<Doorbell*> peer_bells_;  // by rank; none where memory is not shared
  Doorbell own_bell_;
  std::atomic<Doorbell*> bell_{&own_bell_};
  Patience patience_{.spins = 0, .yields = 50};
  bool has_a_core_for_each_ = false;

  std::atomic<int> waiting_{0};
  std::atomic<std::uint64_t> waits_{0};
  std::atomic<bool> stopping_{false};
  std::condition_variable stopped_;
  std::mutex stop_mutex_;
  std::thread housekeeper_;
};

}  // namespace tutti::processes
