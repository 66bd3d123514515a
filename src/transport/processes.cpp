#include <tutti/transport/processes.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

#include "processes_world.hpp"

namespace tutti {
namespace processes {
namespace {

constexpr std::uint64_t kFirstWorld = 1;

// Messages of setting up; calls of a communicator have numbers from 1 in theirs.
constexpr Tag kIntroductionTag{kFirstInternalTag + 1};
constexpr Tag kSegmentTag{kFirstInternalTag + 2};
constexpr Tag kOpenedTag{kFirstInternalTag + 3};
constexpr Tag kMembersTag{kFirstInternalTag + 4};

template <typename T>
void send_value(World& world, Rank to, Tag tag, const T& value, Deadline deadline) {
  world.finish_send(world.start_send(to, tag, std::as_bytes(std::span(&value, 1))), deadline);
}

template <typename T>
T receive_value(World& world, Rank from, Tag tag, Deadline deadline) {
  T value{};
  world.receive(from, tag, deadline).copy_to(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// What a process tells the others of itself.
struct Introduction {
  std::array<char, 40> boot{};  // the same where two processes run on one kernel
  std::uint64_t shares_memory = 0;
  CoreSet cores{};  // that it may use
};

Introduction introduction(bool shared_memory) {
  Introduction mine{.shares_memory = shared_memory ? 1u : 0u, .cores = usable_cores()};
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .read(mine.boot.data(), static_cast<std::streamsize>(mine.boot.size() - 1));
  return mine;
}

struct Shared {
  std::optional<Segment> segment;
  std::vector<Rank> members;
};

// The lowest of `group` makes the memory, and the others say whether they could open it; those share it.
Shared share_segment_with(World& world, const std::vector<Rank>& group, std::size_t bytes, Deadline deadline) {
  const Rank maker = group.front();
  Shared shared;
  if (world.rank() != maker) {
    const auto handle = receive_value<Segment::Handle>(world, maker, kSegmentTag, deadline);
    shared.segment = Segment::open(handle);
    send_value<std::uint64_t>(world, maker, kOpenedTag, shared.segment ? 1 : 0, deadline);
  } else {
    Segment::Handle handle;
    try {
      shared.segment = Segment::create(bytes);
      handle = shared.segment->handle();
    } catch (const std::exception&) {
      // Then nobody can open it, and they go on without.
    }
    for (Rank member : group) {
      if (member != maker) send_value(world, member, kSegmentTag, handle, deadline);
    }
  }
  std::vector<std::uint64_t> opened(group.size(), 1);
  if (world.rank() == maker) {
    for (std::size_t i = 1; i < group.size(); ++i) {
      opened[i] = receive_value<std::uint64_t>(world, group[i], kOpenedTag, deadline);
    }
    for (std::size_t i = 1; i < group.size(); ++i) {
      world.finish_send(world.start_send(group[i], kMembersTag, std::as_bytes(std::span(opened))), deadline);
    }
    if (shared.segment) shared.segment->forget_file();
  } else {
    world.receive(maker, kMembersTag, deadline).copy_to(std::as_writable_bytes(std::span(opened)));
  }
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (opened[i] != 0) shared.members.push_back(group[i]);
  }
  return shared;
}

// All wait for the maker, who waits for somebody else: that one is to be named.
Shared share_segment(World& world, const std::vector<Rank>& group, std::size_t bytes, Deadline deadline) {
  try {
    return share_segment_with(world, group, bytes, deadline);
  } catch (const PeerError& error) {
    const Failure& failure = error.failure();
    if (failure.kind != FailureKind::late || failure.ranks.size() != 1) throw;
    const Rank culprit = world.held_up_by(failure.ranks[0]);
    if (culprit == failure.ranks[0] || culprit == world.rank()) throw;
    throw PeerError(
        {FailureKind::late, {culprit}, fmt::format("{} did not get to share memory in time", to_string(culprit))});
  }
}

// Finds out who runs on this host, and shares memory with them.
void find_neighbours(World& world, bool shared_memory, Deadline deadline) {
  const Introduction mine = introduction(shared_memory);
  std::vector<Rank> group;
  std::vector<CoreSet> cores;
  for (Rank peer : all_ranks(world.size())) {
    if (peer != world.rank()) send_value(world, peer, kIntroductionTag, mine, deadline);
  }
  for (Rank peer : all_ranks(world.size())) {
    const Introduction theirs =
        peer == world.rank() ? mine : receive_value<Introduction>(world, peer, kIntroductionTag, deadline);
    cores.push_back(theirs.cores);
    const bool near = theirs.boot == mine.boot;
    {
      const std::lock_guard lock(world.mesh().mutex());
      world.mesh().peer(world.process(peer)).locality = near ? Locality::same_host : Locality::remote;
    }
    if (near && mine.shares_memory != 0 && theirs.shares_memory != 0) group.push_back(peer);
  }
  if (group.size() < 2 || mine.shares_memory == 0) return;
  Shared shared = share_segment(world, group, Mesh::segment_bytes(group.size()), deadline);
  if (!shared.segment || shared.members.size() < 2) return;
  std::vector<int> members;
  CoreSet all_cores{};
  for (Rank member : shared.members) {
    members.push_back(world.process(member));
    for (std::size_t i = 0; i < all_cores.size(); ++i) all_cores[i] |= cores[static_cast<std::size_t>(member.value)][i];
  }
  world.mesh().share_memory(std::move(*shared.segment), members, count_cores(all_cores));
}

class Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<World> world, EngineFactory make_engine)
      : world_(std::move(world)), board_(*world_, world_->rank()), make_engine_(std::move(make_engine)) {
    if (make_engine_) engine_ = make_engine_({.id = world_->id(), .rank = world_->rank(), .size = world_->size()});
  }
  ~Endpoint() override { world_->close(); }

  Rank rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  Locality locality(Rank peer) const override {
    check(peer);
    return world_->mesh().locality(world_->process(peer));
  }

  SendTicket start_send(Rank to, Tag tag, std::span<const std::byte> payload) override {
    check(to);
    return world_->start_send(to, tag, payload);
  }
  void finish_send(SendTicket ticket, Deadline deadline) override { world_->finish_send(ticket, deadline); }
  void cancel_send(SendTicket ticket) noexcept override { world_->cancel_send(ticket); }
  Delivery receive(Rank from, Tag tag, Deadline deadline) override {
    check(from);
    return world_->receive(from, tag, deadline);
  }
  void expect(Rank from, Tag tag) override {
    check(from);
    world_->expect(from, tag);
  }

  void abort(Failure failure) noexcept override { world_->abort(std::move(failure)); }
  std::optional<Failure> failure() const override { return world_->failure(); }
  void depart(std::string_view why) noexcept override { world_->depart(why, /*from_descendants=*/true); }
  Rank held_up_by(Rank peer) const override { return world_->held_up_by(peer); }
  SharedBoard* shared_board() override { return world_->has_board() ? &board_ : nullptr; }
  EngineCalls* engine_calls() override { return engine_.get(); }

  std::unique_ptr<Transport> regroup(std::span<const Rank> list, Deadline deadline) override {
    const std::vector<Rank> members(list.begin(), list.end());
    for (Rank member : members) check(member);
    auto group = std::make_unique<Endpoint>(world_->regroup(members, deadline), make_engine_);
    try {
      group->world_->set_up_board(deadline);
      group->world_->be_ready();
    } catch (const PeerError& error) {
      // Those who asked for the new world know its members by the numbers of this one.
      Failure failure = error.failure();
      for (Rank& rank : failure.ranks) rank = members[static_cast<std::size_t>(rank.value)];
      failure.message =
          fmt::format("{} did not get to form the new world: {}", to_string(failure.ranks), failure.message);
      throw PeerError(std::move(failure));
    }
    return group;
  }

 private:
  void check(Rank peer) const {
    if (peer.value < 0 || peer.value >= size()) {
      throw UsageError(fmt::format("there is no {}: the world has {} ranks", to_string(peer), size()));
    }
  }

  const std::shared_ptr<World> world_;
  Board<World> board_;
  const EngineFactory make_engine_;
  std::unique_ptr<EngineCalls> engine_;
};

}  // namespace

// --- the board ---

namespace {

// Ranks meet once for what a window holds for each of them. That is best a part of what a core's cache holds; but where
// ranks take turns on the cores, the less often they do, the better.
std::size_t window_bytes(const Mesh& mesh, std::size_t ranks) {
  constexpr std::size_t kKiB = 1024;
  return std::min(ranks * (mesh.has_a_core_for_each() ? 256 : 1024) * kKiB, 4096 * kKiB);
}
// With more of them, what a window has for each would be a few cache lines.
constexpr std::size_t kMostSeats = 1024;
constexpr std::size_t kSlotsBytes = 2 * SharedBoard::kSlotBytes;

}  // namespace

void World::set_up_board(Deadline deadline) {
  const bool possible = std::ranges::all_of(members_, [&](int process) { return mesh_->shares_memory_with(process); });
  if (!possible || members_.size() > kMostSeats) return;
  const RankRange everybody = all_ranks(size());
  const std::vector<Rank> group(everybody.begin(), everybody.end());
  window_bytes_ = window_bytes(*mesh_, group.size());
  Shared shared = share_segment(*this, group, group.size() * (sizeof(Seat) + kSlotsBytes + window_bytes_), deadline);
  if (shared.segment && shared.members.size() == group.size()) board_memory_ = std::move(shared.segment);
}

Seat& World::seat(Rank rank) {
  return reinterpret_cast<Seat*>(board_memory_->data())[static_cast<std::size_t>(rank.value)];
}

std::byte* World::slot(Rank rank, std::uint64_t parity) {
  const auto place = static_cast<std::size_t>(rank.value);
  return board_memory_->data() + members_.size() * sizeof(Seat) + place * kSlotsBytes +
         parity * SharedBoard::kSlotBytes;
}

std::span<std::byte> World::window(Rank rank) {
  const auto place = static_cast<std::size_t>(rank.value);
  return {board_memory_->data() + members_.size() * (sizeof(Seat) + kSlotsBytes) + place * window_bytes_,
          window_bytes_};
}

}  // namespace processes

std::unique_ptr<Transport> join_processes(ProcessesOptions options, Deadline deadline) {
  using namespace processes;
  const auto size = static_cast<int>(options.wires.size());
  if (size < 1) throw UsageError(fmt::format("a world needs at least 1 rank, found {}", size));
  if (options.heartbeat <= Duration::zero()) throw UsageError("the heartbeat must be longer than nothing");
  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto mesh = std::make_shared<Mesh>(
      MeshOptions{.rank = options.rank, .wires = std::move(options.wires), .heartbeat = options.heartbeat});
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(mesh->mutex());
    world = std::make_shared<World>(mesh, kFirstWorld, std::move(everybody));
    mesh->add_world(world);
  }
  auto endpoint = std::make_unique<Endpoint>(world, std::move(options.engine));
  find_neighbours(*world, options.shared_memory, deadline);
  world->set_up_board(deadline);
  world->be_ready();
  return endpoint;
}

}  // namespace tutti
