#include <tutti/coordinate/client_selection.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using strategy::All;
using strategy::ByCapability;
using strategy::PowerOfChoice;
using strategy::Random;
using testing::usage_error;

// Every third has a fast machine, every second is on wifi.
std::vector<ClientInfo> some_clients(std::int64_t count) {
  std::vector<ClientInfo> clients;
  for (std::int64_t i = 0; i < count; ++i) {
    clients.push_back({.rows = i + 1});
    if (i % 3 == 0) clients.back().tags.emplace_back("fast");
    if (i % 2 == 0) clients.back().tags.emplace_back("wifi");
  }
  return clients;
}

std::int64_t count_of(const strategy::ClientSelection& selection, std::span<const ClientInfo> clients) {
  return chosen_count(selection, count_clients(selection, clients));
}

TEST(ClientSelection, ChoosesAShareAndAtLeastOne) {
  const std::vector<ClientInfo> clients = some_clients(100);
  EXPECT_EQ(count_of(All{}, clients), 100);
  EXPECT_EQ(count_of(Random{.fraction = 0.1}, clients), 10);
  EXPECT_EQ(count_of(Random{.fraction = 0.0001}, clients), 1);
  EXPECT_EQ(count_of(Random{.fraction = 1}, clients), 100);
  EXPECT_EQ(count_of(PowerOfChoice{.fraction = 0.07, .candidates = 0.5}, clients), 7);
  EXPECT_EQ(count_of(ByCapability{{"fast"}}, clients), 34);
  EXPECT_EQ(count_of(ByCapability{{"fast", "wifi"}}, clients), 17);
  EXPECT_EQ(count_of(ByCapability{}, clients), 100);
  EXPECT_EQ(usage_error([&] {
              (void)count_of(ByCapability{{"fast", "gpu"}}, clients);
            }),
            "none of 100 clients has all of the required tags: fast, gpu");
  EXPECT_EQ(usage_error([&] { (void)count_of(All{}, {}); }), "there are no clients to choose from");
}

TEST(ClientSelection, DrawsDistinctClientsThatAreFreeAndHaveTheTags) {
  for (const std::int64_t count : {1, 2, 7, 30}) {
    const std::vector<ClientInfo> clients = some_clients(count);
    for (const strategy::ClientSelection& selection : std::vector<strategy::ClientSelection>{
             All{}, Random{.fraction = 0.5}, ByCapability{{"fast"}}, PowerOfChoice{.fraction = 0.5}}) {
      for (const std::int64_t wanted : {std::int64_t{0}, std::int64_t{1}, count / 2, count, count + 3}) {
        for (std::uint64_t call = 0; call < 5; ++call) {
          const auto is_free = [](std::int64_t client) { return client % 5 != 4; };
          const std::vector<std::int64_t> drawn =
              draw_clients(selection, wanted, {.clients = clients, .is_free = is_free, .seed = 7, .call = call});
          EXPECT_TRUE(std::ranges::is_sorted(drawn, std::ranges::less_equal{})) << "sorted, and each once";
          std::int64_t eligible = 0;
          for (std::int64_t client = 0; client < count; ++client) {
            const bool has_tag = client % 3 == 0 || !std::holds_alternative<ByCapability>(selection);
            if (is_free(client) && has_tag) ++eligible;
          }
          EXPECT_EQ(std::ssize(drawn), std::min(wanted, eligible));
          for (const std::int64_t client : drawn) EXPECT_TRUE(is_free(client));
        }
      }
    }
  }
}

TEST(ClientSelection, FollowsFromItsSeedAndCall) {
  const std::vector<ClientInfo> clients = some_clients(100);
  const auto draw = [&](std::uint64_t seed, std::uint64_t call) {
    return draw_clients(Random{.fraction = 0.1}, 10, {.clients = clients, .seed = seed, .call = call});
  };
  EXPECT_EQ(draw(1, 2), draw(1, 2));
  EXPECT_NE(draw(1, 2), draw(1, 3));
  EXPECT_NE(draw(1, 2), draw(2, 2));
}

TEST(ClientSelection, DrawsEachClientAsOftenAsOthers) {
  const std::vector<ClientInfo> clients = some_clients(20);
  std::map<std::int64_t, int> seen;
  constexpr int kCalls = 2000;
  for (std::uint64_t call = 0; call < kCalls; ++call) {
    for (const std::int64_t client :
         draw_clients(Random{.fraction = 0.25}, 5, {.clients = clients, .seed = 3, .call = call}))
      ++seen[client];
  }
  for (const auto& [client, times] : seen) EXPECT_NEAR(times, kCalls / 4, 100) << client;
}

TEST(ClientSelection, DrawsCandidatesWithMoreRowsMoreOften) {
  const std::vector<ClientInfo> clients = some_clients(20);  // 1 to 20 rows
  std::map<std::int64_t, int> seen;
  for (std::uint64_t call = 0; call < 2000; ++call) {
    for (const std::int64_t client : draw_clients(PowerOfChoice{}, 1, {.clients = clients, .seed = 3, .call = call}))
      ++seen[client];
  }
  EXPECT_NEAR(seen[19], 2000.0 * 20 / 210, 50);
  EXPECT_NEAR(seen[9], 2000.0 * 10 / 210, 40);
}

TEST(ClientSelection, ChoosesTheHighestLosses) {
  const std::vector<std::int64_t> candidates = {2, 3, 5, 7};
  const std::vector<double> losses = {1, 3, 3, 2};
  EXPECT_EQ(choose_by_loss(candidates, losses, 1), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(choose_by_loss(candidates, losses, 3), (std::vector<std::int64_t>{3, 5, 7}));
  EXPECT_EQ(choose_by_loss(candidates, losses, 9), candidates);
  EXPECT_EQ(candidate_count({.fraction = 0.1, .candidates = 0.3}, 100, 10), 30);
  EXPECT_EQ(candidate_count({.fraction = 0.1, .candidates = 0.1}, 100, 13), 13);
}

}  // namespace
}  // namespace tutti
