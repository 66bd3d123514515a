// Every rank is a process that runs this whole program: start it with 8 processes.
#include "support/process_world.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(C10d, TransportContract,
                         ::testing::Values(Backend{"Processes",
                                                   [](int ranks, const std::function<void(Transport&)>& script) {
                                                     run_processes(ranks, [&](std::unique_ptr<Transport> group) {
                                                       script(*group);
                                                     });
                                                   }}),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace tutti::testing
