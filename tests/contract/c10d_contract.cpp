// Every rank is a process that runs this whole program: start it with 8 processes.
#include <tutti/c10d/join.hpp>

#include "contract_steps.hpp"
#include "support/process_world.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(C10d, TransportContract,
                         ::testing::Values(Backend{"Processes", Locality::same_host,
                                                   [](int ranks, const std::function<void(Transport&)>& script) {
                                                     run_processes(ranks, [&](std::unique_ptr<Transport> group) {
                                                       script(*group);
                                                     });
                                                   }}),
                         [](const auto& parameter) { return parameter.param.name; });

// A program may join again, and what links of its earlier worlds left behind must not come up.
TEST(C10d, JoinsAgainAndAgain) {
  for (int round = 0; round < 5; ++round) {
    const std::unique_ptr<Transport> world = c10d::join({.deadline = std::chrono::seconds(60)});
    for (std::size_t bytes : {std::size_t{8}, 3 * kEagerBytes, kLongBytes}) {
      const auto data = pattern(bytes, 10 * round + world->rank().value);
      const SendTicket ticket = world->start_send(next_of(*world), Tag{1}, data);
      EXPECT_TRUE(same(receive_all(*world, previous_of(*world), Tag{1}),
                       pattern(bytes, 10 * round + previous_of(*world).value)));
      world->finish_send(ticket, soon());
    }
    meet(*world, Tag{2});
    EXPECT_FALSE(world->failure());
  }
}

}  // namespace
}  // namespace tutti::testing
