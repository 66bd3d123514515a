// Splits into clients: every row with one client and every client with a row, whatever the method.
#include <tutti/data/client_split.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<std::int64_t>;
using testing::usage_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::vector<ClientSplit>& methods() {
  static const std::vector<ClientSplit> all = {Iid{},
                                               Shards{.per_client = 1},
                                               Shards{.per_client = 2},
                                               Shards{.per_client = 5},
                                               Dirichlet{.alpha = 0.001},
                                               Dirichlet{.alpha = 0.5},
                                               Dirichlet{.alpha = 100},
                                               QuantitySkew{.alpha = 0.001},
                                               QuantitySkew{.alpha = 0.5},
                                               QuantitySkew{.alpha = 100},
                                               Files{}};
  return all;
}

// Labels that come in no order, some seldom and one of them negative.
Numbers some_labels(std::int64_t rows) {
  Numbers labels;
  for (std::int64_t row = 0; row < rows; ++row) labels.push_back(row * row % 11 % 7 - 1);
  return labels;
}

// 0, 1, ..., count-1, 0, 1, ...: as many of each.
Numbers in_turns(std::int64_t rows, std::int64_t count) {
  Numbers numbers;
  for (std::int64_t row = 0; row < rows; ++row) numbers.push_back(row % count);
  return numbers;
}

ClientRows split_of(const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
  const Numbers files = in_turns(std::ssize(labels), clients);
  return split_clients(split, {.clients = clients, .rows = std::ssize(labels), .labels = labels, .file_of_row = files},
                       seed);
}

Numbers sizes_of(const ClientRows& clients) {
  Numbers sizes;
  for (const Numbers& rows : clients) sizes.push_back(std::ssize(rows));
  return sizes;
}

std::int64_t kinds_of(const Numbers& rows, const Numbers& labels) {
  std::set<std::int64_t> kinds;
  for (const std::int64_t row : rows) kinds.insert(labels[static_cast<std::size_t>(row)]);
  return std::ssize(kinds);
}

double count_of(std::int64_t label, const Numbers& rows, const Numbers& labels) {
  const auto label_of = [&](std::int64_t row) { return labels[static_cast<std::size_t>(row)]; };
  return static_cast<double>(std::ranges::count(rows, label, label_of));
}

Numbers kinds_by_client(const ClientRows& clients, const Numbers& labels) {
  Numbers kinds;
  for (const Numbers& rows : clients) kinds.push_back(kinds_of(rows, labels));
  return kinds;
}

std::int64_t median_of(Numbers values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void expect_every_row_once(const ClientRows& clients, std::int64_t number_of_clients, std::int64_t rows) {
  EXPECT_EQ(std::ssize(clients), number_of_clients);
  Numbers all;
  for (const Numbers& own : clients) {
    EXPECT_FALSE(own.empty());
    EXPECT_TRUE(std::ranges::is_sorted(own));
    all.insert(all.end(), own.begin(), own.end());
  }
  std::ranges::sort(all);
  Numbers expected(static_cast<std::size_t>(rows));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

// The cross product that properties are checked over.
template <typename Check>
void for_each_case(Check&& check) {
  for (const ClientSplit& split : methods()) {
    for (const std::int64_t clients : {1, 2, 3, 7, 20, 100}) {
      for (const std::int64_t rows :
           {clients, clients + 1, 2 * clients, 5 * clients, 7 * clients + 3, std::int64_t{1000}}) {
        const Shards* shards = std::get_if<Shards>(&split);
        if (shards != nullptr && shards->per_client * clients > rows) continue;
        for (const std::uint64_t seed : {0u, 1u, 77u}) {
          SCOPED_TRACE(::testing::Message()
                       << to_string(split) << ", " << clients << " clients, " << rows << " rows, seed " << seed);
          check(split, clients, some_labels(rows), seed);
        }
      }
    }
  }
}

TEST(SplitClients, GivesEveryRowToOneClientAndEveryClientARow) {
  for_each_case([](const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
    expect_every_row_once(split_of(split, clients, labels, seed), clients, std::ssize(labels));
  });
}

TEST(SplitClients, FollowsFromTheArgumentsAlone) {
  for_each_case([](const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
    EXPECT_EQ(split_of(split, clients, labels, seed), split_of(split, clients, labels, seed));
  });
}

TEST(SplitClients, IsAnotherWithAnotherSeed) {
  const Numbers labels = some_labels(1000);
  for (const ClientSplit& split : methods()) {
    SCOPED_TRACE(to_string(split));
    const bool same = split_of(split, 20, labels, 7) == split_of(split, 20, labels, 8);
    EXPECT_EQ(same, std::holds_alternative<Files>(split));
  }
}

TEST(SplitClients, GivesOneClientEverything) {
  for (const ClientSplit& split : methods()) EXPECT_EQ(split_of(split, 1, some_labels(50), 3)[0].size(), 50u);
}

TEST(SplitClients, DealsOutManyRowsToManyClients) {
  const Numbers labels = in_turns(200'000, 10);
  for (const ClientSplit& split : methods()) {
    if (std::holds_alternative<Files>(split) || split == ClientSplit(Shards{.per_client = 5})) continue;
    SCOPED_TRACE(to_string(split));
    expect_every_row_once(split_of(split, 50'000, labels, 7), 50'000, 200'000);
  }
  // As many labels as rows.
  expect_every_row_once(split_of(Dirichlet{}, 50'000, in_turns(100'000, 100'000), 7), 50'000, 100'000);
}

TEST(Iid, GivesNumbersOfRowsThatDifferByAtMostOne) {
  for_each_case([](const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
    if (!std::holds_alternative<Iid>(split)) return;
    const auto [least, most] = std::ranges::minmax(sizes_of(split_of(split, clients, labels, seed)));
    EXPECT_LE(most - least, 1);
  });
}

// Over 300 seeds, a row is with each of 5 clients 60 times, give or take 7 (one deviation).
TEST(Iid, PrefersNoClientForARow) {
  for (const std::int64_t row : {0, 24, 49}) {
    std::vector<int> times(5);
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const ClientRows clients = split_clients(Iid{}, {.clients = 5, .rows = 50}, seed);
      for (std::size_t client = 0; client < 5; ++client) times[client] += std::ranges::count(clients[client], row) > 0;
    }
    EXPECT_GT(std::ranges::min(times), 60 - 5 * 7);
    EXPECT_LT(std::ranges::max(times), 60 + 5 * 7);
  }
}

// A piece that spans two labels brings one label more, and with n labels there are at most n-1 such places.
TEST(Shards, GivesClientsFewLabels) {
  for_each_case([](const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
    const Shards* shards = std::get_if<Shards>(&split);
    if (shards == nullptr) return;
    const ClientRows dealt = split_of(split, clients, labels, seed);
    std::int64_t beyond = 0;
    for (const Numbers& rows : dealt) beyond += std::max<std::int64_t>(kinds_of(rows, labels) - shards->per_client, 0);
    EXPECT_LE(beyond, std::ssize(std::set(labels.begin(), labels.end())) - 1);
  });
}

TEST(Shards, GivesPiecesWhoseSizesDifferByAtMostOne) {
  for_each_case([](const ClientSplit& split, std::int64_t clients, const Numbers& labels, std::uint64_t seed) {
    const Shards* shards = std::get_if<Shards>(&split);
    if (shards == nullptr) return;
    const std::int64_t pieces = clients * shards->per_client;
    const std::int64_t smaller = std::ssize(labels) / pieces;
    const std::int64_t larger = smaller + (std::ssize(labels) % pieces > 0 ? 1 : 0);
    for (const std::int64_t size : sizes_of(split_of(split, clients, labels, seed))) {
      EXPECT_GE(size, shards->per_client * smaller);
      EXPECT_LE(size, shards->per_client * larger);
    }
  });
}

TEST(Shards, AreExactWhereLabelsFillThem) {
  const Numbers labels = in_turns(60'000, 10);
  const ClientRows clients = split_of(Shards{}, 100, labels, 7);
  for (const Numbers& rows : clients) {
    EXPECT_EQ(rows.size(), 600u);
    EXPECT_LE(kinds_of(rows, labels), 2);
  }
  EXPECT_EQ(median_of(kinds_by_client(clients, labels)), 2);
}

TEST(Shards, KeepRowsOfALabelInTheirOrder) {
  // Labels 1, 0, 1, 0, ...: in the order of labels 1 3 5 7 | 0 2 4 6, and of this each client has neighbours.
  const Numbers labels = {1, 0, 1, 0, 1, 0, 1, 0};
  ClientRows clients = split_of(Shards{.per_client = 1}, 4, labels, 7);
  std::ranges::sort(clients);
  EXPECT_EQ(clients, (ClientRows{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

// 60 rows of each label for each client, give or take 2 (one deviation).
TEST(Dirichlet, IsNearlyUniformWithALargeAlpha) {
  const Numbers labels = in_turns(60'000, 10);
  for (const Numbers& rows : split_of(Dirichlet{.alpha = 1000}, 100, labels, 7)) {
    for (std::int64_t label = 0; label < 10; ++label) EXPECT_NEAR(count_of(label, rows, labels), 60, 20);
  }
}

TEST(Dirichlet, GivesMostClientsFewLabelsWithASmallAlpha) {
  const Numbers labels = in_turns(60'000, 10);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    EXPECT_LE(median_of(kinds_by_client(split_of(Dirichlet{.alpha = 0.01}, 100, labels, seed), labels)), 2);
    EXPECT_EQ(median_of(kinds_by_client(split_of(Dirichlet{.alpha = 100}, 100, labels, seed), labels)), 10);
  }
}

// A label with one row gives it to any client: of 200 such labels each of 10 clients has 20, give or take 4.
TEST(Dirichlet, PrefersNoClientForRareLabels) {
  for (const double alpha : {0.01, 1.0, 1000.0}) {
    for (const std::int64_t size : sizes_of(split_of(Dirichlet{.alpha = alpha}, 10, in_turns(200, 200), 7)))
      EXPECT_NEAR(static_cast<double>(size), 20, 5 * 4);
  }
}

// Alphas beyond what a float can work with mean all or nothing, and the same for all.
TEST(Dirichlet, TakesAnyAlpha) {
  const Numbers labels = in_turns(3000, 3);
  for (const double tiny : {std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::min(), 1e-12}) {
    Numbers sizes = sizes_of(split_of(QuantitySkew{.alpha = tiny}, 7, labels, 7));
    std::ranges::sort(sizes);
    EXPECT_EQ(sizes, (Numbers{1, 1, 1, 1, 1, 1, 2994}));
    const ClientRows clients = split_of(Dirichlet{.alpha = tiny}, 7, labels, 7);
    for (std::int64_t label = 0; label < 3; ++label) {
      double most = 0;
      for (const Numbers& rows : clients) most = std::max(most, count_of(label, rows, labels));
      EXPECT_GE(most, 1000 - 7);
    }
  }
  for (const double huge : {1e40, std::numeric_limits<double>::max()}) {
    for (const Numbers& rows : split_of(Dirichlet{.alpha = huge}, 7, labels, 7)) {
      for (std::int64_t label = 0; label < 3; ++label) EXPECT_NEAR(count_of(label, rows, labels), 1000.0 / 7, 1);
    }
  }
}

// Of k clients, a share of a Dirichlet distribution has the mean 1/k and the variance (1/k) (1 - 1/k) / (k alpha + 1).
TEST(QuantitySkew, DrawsSharesOfADirichletDistribution) {
  constexpr int kSeeds = 300;
  constexpr std::int64_t kRows = 2000;
  for (const std::int64_t clients : {2, 7, 10}) {
    for (const double alpha : {0.05, 0.5, 2.0, 50.0}) {
      SCOPED_TRACE(::testing::Message() << clients << " clients, alpha " << alpha);
      const double k = static_cast<double>(clients);
      const double variance = 1 / k * (1 - 1 / k) / (k * alpha + 1);
      std::vector<double> sum(static_cast<std::size_t>(clients));
      double squares = 0;
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const ClientRows dealt = split_clients(QuantitySkew{.alpha = alpha}, {.clients = clients, .rows = kRows}, seed);
        for (std::size_t client = 0; client < sum.size(); ++client) {
          const double share = static_cast<double>(dealt[client].size()) / kRows;
          sum[client] += share;
          squares += (share - 1 / k) * (share - 1 / k);
        }
      }
      for (const double its : sum) EXPECT_NEAR(its / kSeeds, 1 / k, 5 * std::sqrt(variance / kSeeds));
      EXPECT_NEAR(squares / kSeeds / k / variance, 1, 0.25);
    }
  }
}

TEST(QuantitySkew, KeepsLabelsAlike) {
  const Numbers labels = in_turns(60'000, 3);
  const ClientRows clients = split_of(QuantitySkew{.alpha = 0.5}, 20, labels, 7);
  const auto [least, most] = std::ranges::minmax(sizes_of(clients));
  EXPECT_GT(most, 10 * least);
  for (const Numbers& rows : clients) {
    if (rows.size() < 1000) continue;
    for (std::int64_t label = 0; label < 3; ++label)
      EXPECT_NEAR(count_of(label, rows, labels) / static_cast<double>(rows.size()), 1.0 / 3, 0.08);
  }
}

TEST(Files, AreTheClients) {
  const Numbers files = {2, 0, 0, 1, 2, 0};
  EXPECT_EQ(split_clients(Files{}, {.clients = 3, .rows = 6, .file_of_row = files}, 7),
            (ClientRows{{1, 2, 5}, {3}, {0, 4}}));
}

TEST(SplitClients, NamesTheNumbersThatDoNotFit) {
  const auto refusal = [](const ClientSplit& split, const ClientSplitInputs& inputs) {
    return usage_error([&] { (void)split_clients(split, inputs, 7); });
  };
  const Numbers labels = in_turns(10, 2);
  for (const ClientSplit& split : methods()) {
    EXPECT_EQ(refusal(split, {.clients = 11, .rows = 10, .labels = labels, .file_of_row = labels}),
              "10 rows cannot be dealt out to 11 clients: each has at least one");
    EXPECT_EQ(refusal(split, {.clients = 1, .rows = 0}),
              "0 rows cannot be dealt out to 1 client: each has at least one");
    EXPECT_EQ(refusal(split, {.clients = 0, .rows = 10, .labels = labels, .file_of_row = labels}),
              "rows are dealt out to at least 1 client, found 0");
    EXPECT_EQ(refusal(split, {.clients = 1, .rows = 11, .labels = labels, .file_of_row = labels}) != "(no error)",
              needs_labels(split) || std::holds_alternative<Files>(split));
  }
  EXPECT_EQ(refusal(Shards{.per_client = 3}, {.clients = 4, .rows = 10, .labels = labels}),
            "10 rows cannot be cut into 3 pieces for each of 4 clients: each piece has at least one");
  EXPECT_EQ(refusal(Shards{.per_client = std::numeric_limits<std::int64_t>::max()},
                    {.clients = 4, .rows = 10, .labels = labels}),
            "10 rows cannot be cut into 9223372036854775807 pieces for each of 4 clients: each piece has at least one");
  EXPECT_EQ(refusal(Shards{.per_client = 0}, {.clients = 4, .rows = 10, .labels = labels}),
            "the per_client of a Shards must be at least 1, found 0");
  EXPECT_EQ(refusal(Dirichlet{}, {.clients = 4, .rows = 10}), "Dirichlet needs a label for each of 10 rows, found 0");
  EXPECT_EQ(refusal(Shards{}, {.clients = 4, .rows = 11, .labels = labels}),
            "Shards needs a label for each of 11 rows, found 10");
}

TEST(SplitClients, RefusesFilesThatAreNotTheClients) {
  const auto refusal = [](std::int64_t clients, const Numbers& files) {
    return usage_error([&] {
      (void)split_clients(Files{}, {.clients = clients, .rows = std::ssize(files), .file_of_row = files}, 7);
    });
  };
  EXPECT_EQ(refusal(3, {0, 1, 0, 1}), "each file is a client's, found 2 files and 3 clients");
  EXPECT_EQ(refusal(1, {0, 1, 0, 1}), "each file is a client's, found 2 files and 1 client");
  EXPECT_EQ(refusal(2, {0, 0, 0}), "each file is a client's, found 1 file and 2 clients");
  EXPECT_EQ(refusal(2, {0, std::numeric_limits<std::int64_t>::max()}),
            "each file is a client's, found 9223372036854775808 files and 2 clients");
  EXPECT_EQ(refusal(3, {0, 2, 0, 2}), "each file is a client's, and file 1 of 3 has no rows");
  EXPECT_EQ(refusal(2, {0, -1}), "files count from 0, found the number -1");
  EXPECT_EQ(usage_error([] { (void)split_clients(Files{}, {.clients = 2, .rows = 9}, 7); }),
            "Files needs a file for each of 9 rows, found 0");
}

TEST(SplitClients, RefusesAlphasThatAreNotAboveZero) {
  const Numbers labels = in_turns(10, 2);
  for (const double alpha : {0.0, -0.5, kInfinity, std::nan("")}) {
    for (const ClientSplit& split : {ClientSplit(Dirichlet{alpha}), ClientSplit(QuantitySkew{alpha})}) {
      const std::string refusal =
          usage_error([&] { (void)split_clients(split, {.clients = 2, .rows = 10, .labels = labels}, 7); });
      EXPECT_NE(refusal.find("must be a finite number above 0, found "), std::string::npos) << refusal;
    }
  }
  EXPECT_EQ(usage_error([] { (void)split_clients(QuantitySkew{.alpha = 0}, {.clients = 2, .rows = 10}, 7); }),
            "the alpha of a QuantitySkew must be a finite number above 0, found 0");
}

// --- JSON ---

ClientSplit read(std::string_view text) { return client_split_from_json(JsonDocument::parse(text, "run.json").root()); }

std::string refusal_of(std::string_view text) {
  return usage_error([&] { (void)read(text); });
}

TEST(ClientSplitJson, IsReadAsItIsWritten) {
  for (const ClientSplit& split : methods()) {
    SCOPED_TRACE(to_string(split));
    EXPECT_EQ(read(to_json(split).dump()), split);
  }
}

TEST(ClientSplitJson, IsWrittenWithAllFields) {
  EXPECT_EQ(to_json(Iid{}).dump(), R"({"method":"Iid"})");
  EXPECT_EQ(to_json(Shards{}).dump(), R"({"method":"Shards","per_client":2})");
  EXPECT_EQ(to_json(Dirichlet{}).dump(), R"({"method":"Dirichlet","alpha":0.5})");
  EXPECT_EQ(to_json(QuantitySkew{.alpha = 1}).dump(), R"({"method":"QuantitySkew","alpha":1.0})");
  EXPECT_EQ(to_json(Files{}).dump(), R"({"method":"Files"})");
}

TEST(ClientSplitJson, HasDefaults) {
  EXPECT_EQ(read(R"({"method": "Shards"})"), ClientSplit(Shards{.per_client = 2}));
  EXPECT_EQ(read(R"({"method": "Dirichlet"})"), ClientSplit(Dirichlet{.alpha = 0.5}));
  EXPECT_EQ(read(R"({"method": "QuantitySkew"})"), ClientSplit(QuantitySkew{.alpha = 0.5}));
  EXPECT_EQ(read(R"({"alpha": 3, "method": "Dirichlet"})"), ClientSplit(Dirichlet{.alpha = 3}));
}

TEST(ClientSplitJson, IsRefusedWithItsPlace) {
  EXPECT_EQ(refusal_of(R"({"method": "Dirichlet", "alpha": 0})"),
            "run.json:1:34: alpha: expected a number above 0, found 0");
  EXPECT_EQ(refusal_of(R"({"method": "Shards", "per_client": 0})"),
            "run.json:1:36: per_client: expected a whole number of at least 1, found 0");
  EXPECT_EQ(refusal_of(R"({"method": "Dirichlet", "alpah": 1})"),
            "run.json:1:25: unknown key \"alpah\"; did you mean \"alpha\"?");
  EXPECT_EQ(refusal_of(R"({"method": "Shards", "alpha": 1})"),
            "run.json:1:22: unknown key \"alpha\"; known are \"method\" and \"per_client\"");
  EXPECT_EQ(refusal_of(R"({"method": "Iid", "alpha": 1})"),
            "run.json:1:19: unknown key \"alpha\"; known is \"method\"");
  const std::string all = R"("Iid", "Shards", "Dirichlet", "QuantitySkew" or "Files")";
  EXPECT_EQ(refusal_of(R"({"method": "dirichlet"})"),
            "run.json:1:12: method: expected one of " + all + ", found \"dirichlet\"; did you mean \"Dirichlet\"?");
  EXPECT_EQ(refusal_of(R"({"method": 3})"), "run.json:1:12: method: expected one of " + all + ", found 3");
  EXPECT_EQ(refusal_of(R"({"alpha": 3})"), "run.json:1:1: missing key \"method\"");
  EXPECT_EQ(refusal_of(R"("Iid")"), "run.json:1:1: expected an object, found \"Iid\"");
}

TEST(ClientSplitText, IsForPeople) {
  EXPECT_EQ(to_string(Iid{}), "Iid");
  EXPECT_EQ(to_string(Shards{}), "Shards (2 per client)");
  EXPECT_EQ(to_string(Dirichlet{}), "Dirichlet (alpha 0.5)");
  EXPECT_EQ(to_string(QuantitySkew{.alpha = 3}), "QuantitySkew (alpha 3)");
  EXPECT_EQ(to_string(Files{}), "Files");
}

// --- the summary ---

TEST(SummariseClients, HasALineForEachOfFewClients) {
  const Numbers labels = {0, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1};
  const ClientRows clients = {{0, 1}, {2, 4, 5, 6, 7, 8, 9, 10, 11}, {3}};
  EXPECT_EQ(summarise_clients(clients, labels, {}),
            "client 0: 2 rows: 0 x 1, 1 x 1\n"
            "client 1: 9 rows: 1 x 9\n"
            "client 2: 1 row:  2 x 1\n");
  EXPECT_EQ(summarise_clients(clients, labels, {"cat", "dog"}),
            "client 0: 2 rows: cat x 1, dog x 1\n"
            "client 1: 9 rows: dog x 9\n"
            "client 2: 1 row:  2 x 1\n");
  EXPECT_EQ(summarise_clients(clients, {}, {"cat", "dog"}),
            "client 0: 2 rows\n"
            "client 1: 9 rows\n"
            "client 2: 1 row\n");
}

TEST(SummariseClients, NamesClientsThatHaveNames) {
  EXPECT_EQ(summarise_clients({{0, 1}, {2}}, Numbers{0, 1, 1}, {}, {"north.csv", "far_west.csv"}),
            "client 0 (north.csv):    2 rows: 0 x 1, 1 x 1\n"
            "client 1 (far_west.csv): 1 row:  1 x 1\n");
}

TEST(SummariseClients, AlignsNumbers) {
  ClientRows clients(20, Numbers{0});
  clients[3].resize(1000, 0);
  const std::string text = summarise_clients(clients, Numbers{5}, {});
  EXPECT_NE(text.find("client  3: 1000 rows: 5 x 1000\n"), std::string::npos) << text;
  EXPECT_NE(text.find("client 19:    1 row:  5 x 1\n"), std::string::npos) << text;
}

TEST(SummariseClients, NamesTheMostFrequentOfManyLabels) {
  // Of label n there are n+1 rows.
  Numbers labels;
  for (std::int64_t label = 0; label < 13; ++label)
    labels.insert(labels.end(), static_cast<std::size_t>(label) + 1, label);
  const ClientRows clients = split_clients(Iid{}, {.clients = 1, .rows = std::ssize(labels)}, 7);
  EXPECT_EQ(summarise_clients(clients, labels, {}),
            "client 0: 91 rows: 3 x 4, 4 x 5, 5 x 6, 6 x 7, 7 x 8, 8 x 9, 9 x 10, 10 x 11, 11 x 12, 12 x 13, "
            "3 others x 6\n");
}

TEST(SummariseClients, HasRangesForManyClients) {
  const Numbers labels = in_turns(60'000, 10);
  EXPECT_EQ(summarise_clients(split_of(Iid{}, 21, Numbers(44, 3), 7), Numbers(44, 3), {}),
            "clients      21\n"
            "rows         2 to 3, median 2\n"
            "labels       1 to 1 of 1 per client, median 1\n"
            "main label   100% to 100% of a client's rows, median 100%\n");
  EXPECT_EQ(summarise_clients(split_of(Shards{}, 100, labels, 7), labels, {}),
            "clients      100\n"
            "rows         600 to 600, median 600\n"
            "labels       1 to 2 of 10 per client, median 2\n"
            "main label   50% to 100% of a client's rows, median 50%\n");
  EXPECT_EQ(summarise_clients(split_of(Shards{}, 100, labels, 7), {}, {}),
            "clients      100\n"
            "rows         600 to 600, median 600\n");
}

TEST(SummariseClients, BearsClientsWithoutRows) {
  EXPECT_EQ(summarise_clients({}, {}, {}), "");
  EXPECT_EQ(summarise_clients(ClientRows(1), Numbers{5}, {}), "client 0: 0 rows\n");
  EXPECT_EQ(summarise_clients(ClientRows(30), Numbers{5}, {}),
            "clients      30\n"
            "rows         0 to 0, median 0\n");
}

TEST(SummariseClients, RefusesRowsWithoutALabel) {
  EXPECT_EQ(usage_error([] {
              (void)summarise_clients({{0, 3}}, Numbers{5, 5}, {});
            }),
            "row 3 has no label: found 2 labels");
}

}  // namespace
}  // namespace tutti
