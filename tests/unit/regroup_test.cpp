// New worlds among ranks whose links are not equally quick, so that one hears the end of a story before its beginning.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/transport/processes.hpp>

#include "support/queue_links.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;

// What comes over this link is held back while the gate is shut.
class GatedLink final : public Link {
 public:
  GatedLink(std::unique_ptr<Link> link, const std::atomic<bool>& is_shut) : link_(std::move(link)), is_shut_(is_shut) {}

  void start(std::function<void()> ring) override { link_->start(std::move(ring)); }
  std::size_t most_body_bytes() const override { return link_->most_body_bytes(); }
  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override {
    return link_->write(head, body);
  }
  bool stirred() const noexcept override { return !is_shut_.load() && link_->stirred(); }
  FrameBytes front() override { return is_shut_.load() ? FrameBytes{} : link_->front(); }
  void pop() override { link_->pop(); }
  std::optional<std::string> closed() override { return link_->closed(); }
  void close() noexcept override { link_->close(); }

 private:
  const std::unique_ptr<Link> link_;
  const std::atomic<bool>& is_shut_;
};

Failure disagreement(Transport& transport, const std::vector<Rank>& members) {
  try {
    transport.regroup(members, Deadline::after(30s));
  } catch (const PeerError& error) {
    return error.failure();
  }
  ADD_FAILURE() << to_string(transport.rank()) << " formed a world that the others did not";
  return {};
}

// Ranks 0 and 1 bring all three, and rank 2 brings two. Rank 0 finds that out and says so; rank 1 hears it and comes
// again, which rank 2 hears before it has heard from rank 0.
TEST(Regroup, WhoHearsThatAnotherComesAgainBeforeItHearsWhyDoesNotRefuseIt) {
  const std::vector<Rank> all{Rank{0}, Rank{1}, Rank{2}};
  const std::vector<Rank> two{Rank{1}, Rank{2}};
  std::atomic<bool> shut_from_0_to_2 = false;
  std::atomic<bool> shut_from_1_to_2 = false;
  std::atomic<bool> shut_from_2_to_1 = false;
  auto wires = testing::make_queue_links(3, /*lend=*/false);
  wires[2][0] = std::make_unique<GatedLink>(std::move(wires[2][0]), shut_from_0_to_2);
  wires[2][1] = std::make_unique<GatedLink>(std::move(wires[2][1]), shut_from_1_to_2);
  wires[1][2] = std::make_unique<GatedLink>(std::move(wires[1][2]), shut_from_2_to_1);
  std::barrier have_joined(4);
  std::barrier gates_are_shut(4);
  std::vector<std::jthread> ranks;
  for (std::size_t i = 0; i < 3; ++i) {
    ranks.emplace_back([&, i] {
      const Rank rank{static_cast<int>(i)};
      const std::unique_ptr<Transport> world =
          join_processes({.rank = rank, .wires = std::move(wires[i]), .shared_memory = false}, Deadline::after(30s));
      have_joined.arrive_and_wait();
      gates_are_shut.arrive_and_wait();
      EXPECT_EQ(disagreement(*world, rank == Rank{2} ? two : all).kind, FailureKind::disagreement);
      try {
        EXPECT_EQ(world->regroup(all, Deadline::after(30s))->size(), 3);
      } catch (const PeerError& error) {
        ADD_FAILURE() << to_string(rank) << ": " << error.what();
      }
    });
  }
  have_joined.arrive_and_wait();
  for (std::atomic<bool>* gate : {&shut_from_0_to_2, &shut_from_1_to_2, &shut_from_2_to_1}) gate->store(true);
  gates_are_shut.arrive_and_wait();
  std::this_thread::sleep_for(100ms);
  shut_from_1_to_2 = false;
  std::this_thread::sleep_for(100ms);
  shut_from_0_to_2 = false;
  shut_from_2_to_1 = false;
}

}  // namespace
}  // namespace tutti
