// What holds for whatever clients bring, and comparisons with rules written down as plainly as they can be.
#include <tutti/coordinate/aggregation.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using strategy::Bulyan;
using strategy::FedAvg;
using strategy::FederatedAggregation;
using strategy::Krum;
using strategy::Median;
using strategy::MultiKrum;
using strategy::NormClipping;
using strategy::TrimmedMean;

using Numbers = std::vector<double>;

// Rules for so many clients, of which as many may be hostile as a rule can bear.
std::vector<FederatedAggregation> robust_rules(std::int64_t clients) {
  std::vector<FederatedAggregation> rules = {Median{}};
  for (const double fraction : {0.0, 0.1, 0.2, 0.49}) rules.push_back(TrimmedMean{fraction});
  for (std::int64_t byzantine = 0; 2 * byzantine + 3 <= clients; ++byzantine) {
    rules.push_back(Krum{byzantine});
    for (const std::int64_t keep : {std::int64_t{0}, std::int64_t{1}, clients / 2, clients})
      rules.push_back(MultiKrum{byzantine, keep});
    if (4 * byzantine + 3 <= clients) rules.push_back(Bulyan{byzantine});
  }
  return rules;
}

std::vector<FederatedAggregation> all_rules(std::int64_t clients) {
  std::vector<FederatedAggregation> rules = robust_rules(clients);
  rules.insert(rules.end(), {FedAvg{}, strategy::FedProx{}, strategy::FedYogi{}, strategy::FedAvgM{},
                             strategy::FedAdam{}, strategy::FedAdagrad{}, NormClipping{.max_norm = 1e9}});
  return rules;
}

// Clients 0, 1, 2, ..., with the sets that their updates point to.
class Clients {
 public:
  // All arrays of a client, one after another in `numbers`, are cut into arrays of these lengths.
  Clients(const std::vector<Numbers>& numbers, const std::vector<std::size_t>& lengths) {
    for (const Numbers& its : numbers) {
      ParameterSet& set = sets_.emplace_back();
      std::size_t first = 0;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        set.add(std::to_string(i), {static_cast<std::int64_t>(lengths[i])}, std::span(its).subspan(first, lengths[i]));
        first += lengths[i];
      }
    }
    for (std::size_t i = 0; i < sets_.size(); ++i)
      updates.push_back({.client = static_cast<std::int64_t>(i), .values = &sets_[i]});
  }
  explicit Clients(const std::vector<Numbers>& numbers) : Clients(numbers, {numbers.front().size()}) {}
  Clients(const Clients&) = delete;

  std::vector<ClientUpdate> updates;

 private:
  std::vector<ParameterSet> sets_;
};

Numbers joined(const Change& change) {
  Numbers all;
  for (const Numbers& array : change) all.insert(all.end(), array.begin(), array.end());
  return all;
}

// --- the rules, plainly: of whole numbers, so that nothing is rounded but a mean ---

double mean_of(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

double median_of_sorted(const Numbers& sorted) {
  const std::size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double squared_distance(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

using DistanceOf = std::function<double(std::size_t, std::size_t)>;

// Of the clients in `among` each one's score and number, the best first.
std::vector<std::pair<double, std::size_t>> plain_scores(const std::vector<std::size_t>& among, std::int64_t byzantine,
                                                         const DistanceOf& distance) {
  std::vector<std::pair<double, std::size_t>> scores;
  for (const std::size_t a : among) {
    Numbers distances;
    for (const std::size_t b : among) {
      if (a != b) distances.push_back(distance(a, b));
    }
    std::ranges::sort(distances);
    const std::int64_t nearest = std::max<std::int64_t>(1, std::ssize(among) - byzantine - 2);
    distances.resize(std::min(distances.size(), static_cast<std::size_t>(nearest)));
    scores.emplace_back(std::accumulate(distances.begin(), distances.end(), 0.0), a);
  }
  std::ranges::sort(scores);
  return scores;
}

struct PlainRule {
  const std::vector<Numbers>& clients;
  DistanceOf distance;

  template <typename Merge>
  Numbers by_coordinate(const std::vector<std::size_t>& selected, const Merge& merge) const {
    Numbers result;
    for (std::size_t i = 0; i < clients[0].size(); ++i) {
      Numbers column;
      for (const std::size_t client : selected) column.push_back(clients[client][i]);
      std::ranges::sort(column);
      result.push_back(merge(column));
    }
    return result;
  }
  std::vector<std::size_t> everybody() const {
    std::vector<std::size_t> all(clients.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }
  Numbers mean_of_best(std::int64_t byzantine, std::int64_t keep) const {
    std::vector<std::size_t> best;
    for (const auto& [score, client] : plain_scores(everybody(), byzantine, distance)) best.push_back(client);
    best.resize(static_cast<std::size_t>(keep));
    return by_coordinate(best, [](const Numbers& column) { return mean_of(column); });
  }

  template <typename Mean>
  Numbers operator()(const Mean&) const {
    return by_coordinate(everybody(), [](const Numbers& column) { return mean_of(column); });
  }
  Numbers operator()(const Median&) const { return by_coordinate(everybody(), median_of_sorted); }
  Numbers operator()(const TrimmedMean& rule) const {
    return by_coordinate(everybody(), [&](const Numbers& column) {
      const auto dropped = static_cast<std::size_t>(rule.fraction * static_cast<double>(column.size()));
      return mean_of(std::span(column).subspan(dropped, column.size() - 2 * dropped));
    });
  }
  Numbers operator()(const Krum& rule) const { return mean_of_best(rule.byzantine, 1); }
  Numbers operator()(const MultiKrum& rule) const {
    return mean_of_best(rule.byzantine, rule.keep == 0 ? std::ssize(clients) - rule.byzantine : rule.keep);
  }
  Numbers operator()(const Bulyan& rule) const {
    std::vector<std::size_t> rest = everybody();
    std::vector<std::size_t> selected;
    const auto trimmed = static_cast<std::size_t>(2 * rule.byzantine);
    while (selected.size() < clients.size() - trimmed) {
      selected.push_back(plain_scores(rest, rule.byzantine, distance).front().second);
      std::erase(rest, selected.back());
    }
    return by_coordinate(selected, [&](const Numbers& column) {
      const double median = median_of_sorted(column);
      Numbers nearest = column;
      std::ranges::sort(nearest, {}, [&](double number) { return std::pair(std::abs(number - median), number); });
      nearest.resize(column.size() - trimmed);
      return mean_of(nearest);
    });
  }
};

TEST(AggregationRules, AreWhatTheyAreWrittenDownAs) {
  for (std::size_t clients = 1; clients <= 16; ++clients) {
    // Shorter and longer than what is computed with at a time, and empty.
    const std::vector<std::vector<std::size_t>> layouts = {{1}, {3, 0, 5}, {16'384 / clients + 1, 2}};
    for (std::uint64_t layout = 0; layout < layouts.size(); ++layout) {
      if (layout == 2 && clients % 5 != 1) continue;  // they take long
      // Few different numbers have many ties, many have few.
      for (const std::uint64_t different : {std::uint64_t{3}, std::uint64_t{2000}}) {
        SCOPED_TRACE(std::to_string(clients) + " clients, layout " + std::to_string(layout) + ", " +
                     std::to_string(different) + " different numbers");
        RandomStream draws({clients, layout, different});
        const auto& lengths = layouts[layout];
        std::vector<Numbers> numbers(clients, Numbers(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0})));
        for (Numbers& its : numbers) {
          for (double& number : its) number = static_cast<double>(draws.below(different)) - 1;
        }
        const Clients all(numbers, lengths);
        Numbers distances;
        for (const Numbers& a : numbers) {
          for (const Numbers& b : numbers) distances.push_back(squared_distance(a, b));
        }
        const PlainRule plain{numbers, [&](std::size_t a, std::size_t b) { return distances[a * clients + b]; }};
        for (const FederatedAggregation& rule : all_rules(static_cast<std::int64_t>(clients))) {
          if (std::cmp_less(clients, least_updates(rule))) continue;
          ASSERT_EQ(joined(aggregate(rule, all.updates)), std::visit(plain, rule)) << "rule " << rule.index();
        }
      }
    }
  }
}

TEST(AggregationRules, GiveTheSameBitsInWhateverOrderUpdatesCome) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream draws({seed});
    std::vector<Numbers> numbers(11, Numbers(37));
    for (Numbers& its : numbers) {
      for (double& number : its) number = draws.normal() * std::exp(draws.normal() * 5);
    }
    Clients clients(numbers);
    for (ClientUpdate& update : clients.updates) {
      update.weight = draws.uniform() * 100;
      update.discount = draws.below(2) == 0 ? 1 : draws.uniform();
    }
    std::vector<FederatedAggregation> rules = all_rules(11);
    rules.push_back(NormClipping{.max_norm = 0.1});
    for (const FederatedAggregation& rule : rules) {
      const Change expected = aggregate(rule, clients.updates);
      std::vector<ClientUpdate> shuffled = clients.updates;
      for (int repeat = 0; repeat < 3; ++repeat) {
        draws.shuffle(std::span(shuffled));
        ASSERT_EQ(aggregate(rule, shuffled), expected) << "rule " << rule.index();
      }
    }
  }
}

TEST(AggregationRules, GiveExactlyWhatAllBring) {
  for (std::size_t clients = 1; clients <= 16; ++clients) {
    SCOPED_TRACE(std::to_string(clients) + " clients");
    RandomStream draws({clients});
    Numbers any(40);
    Numbers short_ones(40);  // of so few bits that their sums are exact
    for (double& number : any) number = draws.normal() * std::exp(draws.normal() * 20);
    for (double& number : short_ones) number = static_cast<double>(draws.below(1u << 24)) * 0x1p-20 - 8;
    Clients with_any(std::vector<Numbers>(clients, any));
    Clients with_short(std::vector<Numbers>(clients, short_ones));
    for (ClientUpdate& update : with_short.updates) update.weight = static_cast<double>(1 + draws.below(1000));
    for (const FederatedAggregation& rule : all_rules(static_cast<std::int64_t>(clients))) {
      if (std::cmp_less(clients, least_updates(rule))) continue;
      EXPECT_EQ(joined(aggregate(rule, with_short.updates)), short_ones) << "rule " << rule.index();
      if (is_mean(rule)) continue;
      EXPECT_EQ(joined(aggregate(rule, with_any.updates)), any) << "rule " << rule.index();
    }
  }
}

TEST(AggregationMeans, DependOnTheProportionsOfWeightsAlone) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream draws({seed});
    std::vector<Numbers> numbers(1 + draws.below(9), Numbers(10));
    for (Numbers& its : numbers) {
      for (double& number : its) number = draws.normal();
    }
    Clients clients(numbers);
    for (ClientUpdate& update : clients.updates) update.weight = 1 + draws.uniform() * 1000;
    const Numbers expected = joined(aggregate(FedAvg{}, clients.updates));
    for (const double factor : {2.0, 3.0, 0.01}) {
      std::vector<ClientUpdate> scaled = clients.updates;
      for (ClientUpdate& update : scaled) update.weight *= factor;
      EXPECT_THAT(joined(aggregate(FedAvg{}, scaled)), ::testing::Pointwise(::testing::DoubleNear(1e-14), expected));
    }
  }
}

TEST(AggregationMeans, CountAClientOfWeightThreeAsThreeThatAreEqual) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream draws({seed});
    std::vector<Numbers> few;
    std::vector<Numbers> many;
    std::vector<double> weights;
    for (std::uint64_t client = 0; client <= seed % 7; ++client) {
      Numbers its(5);
      for (double& number : its) number = static_cast<double>(draws.below(1000));
      weights.push_back(static_cast<double>(1 + draws.below(4)));
      few.push_back(its);
      many.insert(many.end(), static_cast<std::size_t>(weights.back()), its);
    }
    Clients weighted(few);
    for (std::size_t i = 0; i < weights.size(); ++i) weighted.updates[i].weight = weights[i];
    const Clients equal(many);
    EXPECT_EQ(aggregate(FedAvg{}, weighted.updates), aggregate(FedAvg{}, equal.updates));
    // A discount is a part of the weight.
    for (ClientUpdate& update : weighted.updates) {
      update.discount = 0.25;
      update.weight *= 4;
    }
    EXPECT_EQ(aggregate(FedAvg{}, weighted.updates), aggregate(FedAvg{}, equal.updates));
  }
}

// --- hostile clients ---

struct Attack {
  std::string name;
  // One number of a hostile client, where the honest ones' mean is `mean`.
  std::function<double(RandomStream&, std::size_t hostile, double mean)> number;
};

const std::vector<Attack> kFarAttacks = {
    {"huge", [](RandomStream& draws, std::size_t, double) { return (draws.below(2) == 0 ? 1 : -1) * 1e30; }},
    {"hugest", [](RandomStream&, std::size_t hostile, double) { return hostile % 2 == 0 ? 1e300 : -1e300; }},
    {"negated", [](RandomStream&, std::size_t, double mean) { return -20 * mean; }},
    {"colluding", [](RandomStream&, std::size_t, double) { return -300.0; }},
    {"scattered", [](RandomStream& draws, std::size_t, double) { return 1e6 * draws.normal(); }}};
// Those that look at each number by itself bear these, too.
const std::vector<Attack> kNearAttacks = {
    {"beside", [](RandomStream&, std::size_t, double mean) { return mean + 1.5; }},
    {"noisy", [](RandomStream& draws, std::size_t, double mean) { return mean + 3 * draws.normal(); }}};

struct Attacked {
  std::vector<Numbers> clients;
  Numbers lowest;  // of honest ones
  Numbers highest;
};

Attacked attacked(RandomStream& draws, std::size_t clients, std::size_t hostile, const Attack& attack) {
  constexpr std::size_t kNumbers = 30;
  Attacked all;
  for (std::size_t client = hostile; client < clients; ++client) {
    Numbers& its = all.clients.emplace_back();
    for (std::size_t i = 0; i < kNumbers; ++i) its.push_back(5 + draws.normal());
  }
  Numbers mean(kNumbers);
  for (std::size_t i = 0; i < kNumbers; ++i) {
    Numbers column;
    for (const Numbers& its : all.clients) column.push_back(its[i]);
    mean[i] = mean_of(column);
    all.lowest.push_back(std::ranges::min(column));
    all.highest.push_back(std::ranges::max(column));
  }
  for (std::size_t client = 0; client < hostile; ++client) {
    Numbers its;
    for (std::size_t i = 0; i < kNumbers; ++i) its.push_back(attack.number(draws, client, mean[i]));
    all.clients.push_back(its);
  }
  draws.shuffle(std::span(all.clients));
  return all;
}

bool within_honest_ones(const FederatedAggregation& rule, const Attacked& all) {
  const Clients clients(all.clients);
  const Numbers merged = joined(aggregate(rule, clients.updates));
  for (std::size_t i = 0; i < merged.size(); ++i) {
    if (!(merged[i] >= all.lowest[i] && merged[i] <= all.highest[i])) return false;
  }
  return true;
}

TEST(RobustAggregation, StaysAmongHonestClientsUpToItsBreakdownPoint) {
  for (std::size_t clients = 1; clients <= 23; ++clients) {
    for (std::size_t hostile = 0; 2 * hostile < clients; ++hostile) {
      std::vector<FederatedAggregation> by_number = {Median{}};
      // As many as are hostile are trimmed, or more.
      for (const double fraction : {0.1, 0.2, 0.3, 0.45}) {
        if (std::floor(fraction * static_cast<double>(clients) + 1e-9) >= static_cast<double>(hostile))
          by_number.push_back(TrimmedMean{fraction});
      }
      std::vector<FederatedAggregation> by_distance;
      const auto byzantine = static_cast<std::int64_t>(hostile);
      if (clients >= 2 * hostile + 3) {
        by_distance.push_back(Krum{byzantine});
        by_distance.push_back(MultiKrum{byzantine});
        by_distance.push_back(MultiKrum{byzantine, static_cast<std::int64_t>(clients - hostile) / 2});
      }
      if (clients >= 4 * hostile + 3) by_distance.push_back(Bulyan{byzantine});
      const auto expect_to_bear = [&](const Attack& attack, const std::vector<FederatedAggregation>& rules) {
        SCOPED_TRACE(attack.name + ": " + std::to_string(hostile) + " of " + std::to_string(clients));
        RandomStream draws({clients, hostile});
        const Attacked all = attacked(draws, clients, hostile, attack);
        for (const FederatedAggregation& rule : rules)
          EXPECT_TRUE(within_honest_ones(rule, all)) << "rule " << rule.index();
      };
      for (const Attack& attack : kFarAttacks) {
        expect_to_bear(attack, by_number);
        expect_to_bear(attack, by_distance);
      }
      for (const Attack& attack : kNearAttacks) expect_to_bear(attack, by_number);
    }
  }
}

TEST(RobustAggregation, IsNotWhatTheMeanIs) {
  for (const std::size_t clients : {2, 3, 8, 23}) {
    for (const Attack& attack : kFarAttacks) {
      SCOPED_TRACE(attack.name + ": 1 of " + std::to_string(clients));
      RandomStream draws({clients});
      const Attacked all = attacked(draws, clients, 1, attack);
      EXPECT_FALSE(within_honest_ones(FedAvg{}, all));
      EXPECT_FALSE(within_honest_ones(TrimmedMean{0}, all));
    }
  }
}

TEST(RobustAggregation, BreaksDownBeyondItsPoint) {
  const auto& colluding = kFarAttacks[3];
  RandomStream draws({1});
  EXPECT_FALSE(within_honest_ones(Median{}, attacked(draws, 9, 5, colluding)));
  EXPECT_FALSE(within_honest_ones(TrimmedMean{0.2}, attacked(draws, 10, 3, colluding)));
  EXPECT_FALSE(within_honest_ones(Krum{1}, attacked(draws, 9, 7, colluding)));
}

TEST(RobustAggregation, NormClippingBoundsWhatOneClientDoes) {
  const auto largest = [](double max_norm, std::size_t clients) {
    std::vector<Numbers> numbers(clients, Numbers(30, 0.0));
    numbers[0].assign(30, 1e30);
    const Clients all(numbers);
    double squares = 0;
    for (const double number : joined(aggregate(NormClipping{max_norm}, all.updates))) squares += number * number;
    return std::sqrt(squares);
  };
  for (const double max_norm : {0.01, 1.0, 50.0}) {
    for (const std::size_t clients : {1, 2, 10}) {
      EXPECT_NEAR(largest(max_norm, clients), max_norm / static_cast<double>(clients), 1e-12 * max_norm);
    }
  }
}

}  // namespace
}  // namespace tutti
