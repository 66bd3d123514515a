#include <thread>
#include <vector>

#include <tutti/transport/threads.hpp>

#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

void run_threads(int ranks, bool shared_memory, const std::function<void(Transport&)>& script) {
  auto world = make_threads_world(ranks, {.shared_memory = shared_memory});
  std::vector<std::jthread> threads;
  for (auto& endpoint : world) {
    threads.emplace_back([&script, transport = std::move(endpoint)] {
      try {
        script(*transport);
      } catch (const std::exception& error) {
        ADD_FAILURE() << to_string(transport->rank()) << " threw: " << error.what();
      }
    });
  }
}

std::string name_of(const ::testing::TestParamInfo<Backend>& parameter) { return parameter.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Threads, TransportContract,
    ::testing::Values(Backend{"SharedMemory", Locality::same_address_space,
                              [](int ranks, const auto& script) { run_threads(ranks, true, script); }},
                      Backend{"MessagesOnly", Locality::same_host,
                              [](int ranks, const auto& script) { run_threads(ranks, false, script); }}),
    name_of);

}  // namespace
}  // namespace tutti::testing
