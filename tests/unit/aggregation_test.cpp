#include <tutti/coordinate/aggregation.hpp>

#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>

#include "support/usage_error.hpp"

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
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::usage_error;

// None of the changes here is longer than NormClipping's norm.
const std::vector<FederatedAggregation> kMeans = {FedAvg{},
                                                  strategy::FedProx{},
                                                  strategy::FedYogi{},
                                                  strategy::FedAvgM{},
                                                  strategy::FedAdam{},
                                                  strategy::FedAdagrad{},
                                                  NormClipping{.max_norm = 1e30}};
const std::vector<FederatedAggregation> kOthers = {Median{}, TrimmedMean{}, Krum{}, MultiKrum{}, Bulyan{}};

ParameterSet set_of(const std::vector<double>& numbers, DataType type = DataType::float32) {
  ParameterSet set;
  const Array array = set.add({.name = "weight", .shape = {static_cast<std::int64_t>(numbers.size())}, .type = type});
  dispatch(type, [&]<typename T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if constexpr (requires { T::from_float(0.f); })
        reinterpret_cast<T*>(array.data())[i] = T::from_float(static_cast<float>(numbers[i]));
      else
        reinterpret_cast<T*>(array.data())[i] = static_cast<T>(numbers[i]);
    }
  });
  return set;
}

// Updates with the sets they point to.
class Updates {
 public:
  Updates() = default;
  // Of clients 0, 1, 2, ..., each of one number.
  explicit Updates(const std::vector<double>& numbers) {
    for (const double number : numbers) add({.client = std::ssize(updates_)}, set_of({number}));
  }

  void add(ClientUpdate update, ParameterSet values) {
    update.values = &sets_.emplace_back(std::move(values));
    updates_.push_back(update);
  }
  void add(ClientUpdate update, ParameterSet values, ParameterSet base) {
    update.base = &sets_.emplace_back(std::move(base));
    add(update, std::move(values));
  }
  ClientUpdate& operator[](std::size_t i) { return updates_[i]; }
  operator std::span<const ClientUpdate>() const { return updates_; }  // NOLINT(google-explicit-constructor)

 private:
  std::deque<ParameterSet> sets_;
  std::vector<ClientUpdate> updates_;
};

// Of updates with one number.
double merged(const FederatedAggregation& rule, std::span<const ClientUpdate> updates) {
  const Change change = aggregate(rule, updates);
  EXPECT_EQ(change.size(), 1u);
  EXPECT_EQ(change[0].size(), 1u);
  return change[0][0];
}

// --- worked examples ---

TEST(Aggregate, WeighsByRowsInEveryMean) {
  Updates updates;
  updates.add({.client = 0, .weight = 1}, set_of({1, 2, 0}));
  updates.add({.client = 1, .weight = 3}, set_of({3, 6, -4}));
  for (const FederatedAggregation& rule : kMeans) {
    EXPECT_TRUE(is_mean(rule));
    EXPECT_THAT(aggregate(rule, updates), ElementsAre(ElementsAre(2.5, 5, -3)));
  }
  for (const FederatedAggregation& rule : kOthers) EXPECT_FALSE(is_mean(rule));
}

TEST(Aggregate, MergesTheMeansOfTwoHalvesToTheMeanOfAll) {
  // 0 to 7: the first half has the mean 1.5, the second 5.5.
  for (const double base : {0.0, 0.37, -100.25, 1e-3, 12345.678}) {
    for (const DataType type : {DataType::float32, DataType::float64}) {
      const ParameterSet sent = set_of({base}, type);
      Updates updates;
      updates.add({.client = 0, .weight = 4}, set_of({1.5}, type), sent);
      updates.add({.client = 1, .weight = 4}, set_of({5.5}, type), sent);
      const double change = merged(FedAvg{}, updates);
      if (type == DataType::float32)
        EXPECT_EQ(static_cast<double>(sent[0].values<float>()[0]) + change, 3.5) << base;
      else
        EXPECT_NEAR(base + change, 3.5, std::abs(base) * 1e-15 + 1e-15) << base;
    }
  }
}

TEST(Aggregate, ShortensLongChangesAlone) {
  Updates updates;
  updates.add({.client = 0}, set_of({3, 4}));
  updates.add({.client = 1}, set_of({0.5, 0}));
  EXPECT_THAT(aggregate(NormClipping{.max_norm = 2.5}, updates), ElementsAre(ElementsAre(1, 1)));
  EXPECT_THAT(aggregate(NormClipping{.max_norm = 5}, updates), ElementsAre(ElementsAre(1.75, 2)));
  EXPECT_THAT(aggregate(NormClipping{.max_norm = 0.25}, updates),
              ElementsAre(ElementsAre(DoubleEq((0.15 + 0.25) / 2), DoubleEq(0.1))));
}

TEST(Aggregate, TakesTheMedianOfEachNumber) {
  EXPECT_EQ(merged(Median{}, Updates({7})), 7);
  EXPECT_EQ(merged(Median{}, Updates({7, 1})), 4);
  EXPECT_EQ(merged(Median{}, Updates({9, -5, 2})), 2);
  EXPECT_EQ(merged(Median{}, Updates({9, -5, 2, 3})), 2.5);
  Updates updates;
  updates.add({.client = 0, .weight = 1000}, set_of({1, 30}));
  updates.add({.client = 1, .weight = 1}, set_of({2, 10}));
  updates.add({.client = 2, .weight = 0}, set_of({3, 20}));
  EXPECT_THAT(aggregate(Median{}, updates), ElementsAre(ElementsAre(2, 20)));
}

TEST(Aggregate, TrimsAsManyAsTheFractionSays) {
  struct Case {
    double fraction;
    std::size_t updates;
    std::size_t dropped;
  };
  for (const Case& its : {Case{0.2, 5, 1}, Case{0.2, 4, 0}, Case{0.2, 9, 1}, Case{0.2, 10, 2}, Case{0.3, 10, 3},
                          Case{0.29, 100, 29}, Case{0.1, 9, 0}, Case{0.1, 10, 1}, Case{0.07, 100, 7}, Case{0, 50, 0},
                          Case{0.49, 100, 49}, Case{0.49, 2, 0}, Case{0.4999999999999, 2, 0}, Case{0.45, 1, 0}}) {
    std::vector<double> squares;
    double sum = 0;
    for (std::size_t i = 0; i < its.updates; ++i) {
      squares.push_back(static_cast<double>(i * i));
      if (i >= its.dropped && i < its.updates - its.dropped) sum += squares.back();
    }
    EXPECT_EQ(merged(TrimmedMean{.fraction = its.fraction}, Updates(squares)),
              sum / static_cast<double>(its.updates - 2 * its.dropped))
        << its.fraction << " of " << its.updates;
  }
}

TEST(Aggregate, TakesTheUpdateWithTheNearestNeighbours) {
  // Two neighbours count: scores 1 + 4, 1 + 1, 1 + 4, 1 + 64, 1 + 81.
  const Updates updates({0, 1, 2, 10, 11});
  EXPECT_THAT(krum_order(updates, 1), ElementsAre(1, 0, 2, 3, 4));
  EXPECT_EQ(merged(Krum{.byzantine = 1}, updates), 1);
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1, .keep = 1}, updates), 1);
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1, .keep = 2}, updates), 0.5);
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1, .keep = 3}, updates), 1);
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1}, updates), 3.25);  // all but one
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1, .keep = 5}, updates), 4.8);
}

TEST(Aggregate, KrumTakesTheLowestClientOfEqualScores) {
  Updates updates({0, 1, 2, 10, 11});
  updates[0].client = 9;  // as good as the third
  EXPECT_THAT(krum_order(updates, 1), ElementsAre(1, 2, 0, 3, 4));
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1, .keep = 2}, updates), 1.5);
  EXPECT_THAT(krum_order(Updates({4, 4, 4}), 0), ElementsAre(0, 1, 2));
}

TEST(Aggregate, BulyanTakesTheMeanOfThoseNearestToTheMedianOfItsSelection) {
  // Krum takes 2, 3, 1, 4, 0 in this order, by 4, 3, 2, 1, 1 neighbours; of those 1, 2, 3 are nearest to 2.
  EXPECT_EQ(merged(Bulyan{.byzantine = 1}, Updates({0, 1, 2, 3, 4, 5, 100})), 2);
  // It takes 0, 1, 2, 5, 8; the median is 2, and of 5 and 8 neither is as near as 0.
  EXPECT_EQ(merged(Bulyan{.byzantine = 1}, Updates({0, 1, 2, 5, 8, 1000, 2000})), 1);
  // Without hostile ones all are taken.
  EXPECT_EQ(merged(Bulyan{}, Updates({0, 1, 8})), 3);
}

// --- what counts ---

TEST(Aggregate, DiscountsTheWeightWhereRowsCountAndTheChangeWhereTheyDoNot) {
  Updates updates({8, 2, -6});
  updates[0].weight = 6;
  updates[0].discount = 0.5;
  for (const FederatedAggregation& rule : kMeans) EXPECT_EQ(merged(rule, updates), (3 * 8 + 2 - 6) / 5.0);
  EXPECT_EQ(merged(Median{}, updates), 2);
  EXPECT_EQ(merged(TrimmedMean{}, updates), 0);
  EXPECT_EQ(merged(MultiKrum{}, updates), 0);
  EXPECT_EQ(merged(Bulyan{}, updates), 0);
  EXPECT_EQ(merged(Krum{}, updates), 4);  // 4 and 2 are nearest to each other
  updates[0].discount = 0;
  for (const FederatedAggregation& rule : kMeans) EXPECT_EQ(merged(rule, updates), -2);
  EXPECT_EQ(merged(Median{}, updates), 0);
}

TEST(Aggregate, LeavesOutWhatWeighsNothing) {
  const double infinity = std::numeric_limits<double>::infinity();
  Updates updates({1, infinity, 3});
  updates[1].weight = 0;
  EXPECT_EQ(merged(FedAvg{}, updates), 2);
}

TEST(Aggregate, ReadsEveryTypeWithAndWithoutABase) {
  for (const DataType type : kAllDataTypes) {
    SCOPED_TRACE(to_string(type));
    const ParameterSet base = set_of({10, -3}, type);
    Updates with_base;
    Updates without;
    for (int client = 0; client < 4; ++client) {
      with_base.add({.client = client}, set_of({10.0 + client, -3.0 - 2 * client}, type), base);
      without.add({.client = client}, set_of({0.0 + client, -2.0 * client}, type));
    }
    for (const std::vector<FederatedAggregation>& rules : {kMeans, kOthers}) {
      for (const FederatedAggregation& rule : rules) EXPECT_EQ(aggregate(rule, with_base), aggregate(rule, without));
    }
    EXPECT_THAT(aggregate(FedAvg{}, with_base), ElementsAre(ElementsAre(1.5, -3)));
    EXPECT_THAT(aggregate(Median{}, with_base), ElementsAre(ElementsAre(1.5, -3)));
  }
}

TEST(Aggregate, ReadsHalvesThatAreNoIntegers) {
  Updates updates;
  updates.add({.client = 0}, set_of({0.1, -0x1p-24}, DataType::float16));
  const double tenth = static_cast<double>(float16::from_float(0.1f).to_float());
  EXPECT_THAT(aggregate(FedAvg{}, updates), ElementsAre(ElementsAre(tenth, -0x1p-24)));
  EXPECT_THAT(aggregate(Median{}, updates), ElementsAre(ElementsAre(tenth, -0x1p-24)));
}

TEST(Aggregate, CountsLargeIntegersExactly) {
  const auto counter = [](std::int64_t value) {
    ParameterSet set;
    set.add("steps", {}, std::span(&value, 1));
    return set;
  };
  constexpr std::int64_t kLarge = (std::int64_t{1} << 62) + 1;
  Updates updates;
  for (const int client : {0, 1, 2}) updates.add({.client = client}, counter(kLarge + client), counter(kLarge));
  for (const std::vector<FederatedAggregation>& rules : {kMeans, kOthers}) {
    for (const FederatedAggregation& rule : rules)
      EXPECT_EQ(merged(rule, updates), std::holds_alternative<Krum>(rule) ? 0 : 1) << rule.index();
  }
  // A difference that no int64 is.
  Updates far;
  far.add({}, counter(std::numeric_limits<std::int64_t>::max()), counter(std::numeric_limits<std::int64_t>::min()));
  EXPECT_EQ(merged(FedAvg{}, far), 0x1p64);
}

TEST(Aggregate, SelectsAndClipsByTrainedArraysAlone) {
  const auto with_buffer = [](float weight, std::int64_t buffer) {
    ParameterSet set;
    set.add("weight", {1}, std::span(&weight, 1));
    set.add("buffer", {1}, std::span(&buffer, 1));
    return set;
  };
  Updates updates;
  updates.add({.client = 0}, with_buffer(0, 1));
  updates.add({.client = 1}, with_buffer(1, 1'000'000));
  updates.add({.client = 2}, with_buffer(2, 2));
  updates.add({.client = 3}, with_buffer(10, 3));
  updates.add({.client = 4}, with_buffer(11, 4));
  const std::vector<bool> is_trained{true, false};
  EXPECT_THAT(krum_order(updates, 1, is_trained), ElementsAre(1, 0, 2, 3, 4));
  EXPECT_THAT(aggregate(Krum{.byzantine = 1}, updates, is_trained),
              ElementsAre(ElementsAre(1), ElementsAre(1'000'000)));
  EXPECT_EQ(krum_order(updates, 1).back(), 1u);
  EXPECT_THAT(aggregate(MultiKrum{.byzantine = 1, .keep = 2}, updates, is_trained),
              ElementsAre(ElementsAre(0.5), ElementsAre(500'000.5)));
  EXPECT_THAT(aggregate(NormClipping{.max_norm = 1}, updates, is_trained),
              ElementsAre(ElementsAre(DoubleNear(0.8, 1e-15)), ElementsAre(200'002)));
  EXPECT_THAT(aggregate(Median{}, updates, is_trained), ElementsAre(ElementsAre(2), ElementsAre(3)));
  EXPECT_EQ(norm_of(updates[3], is_trained), 10);
}

TEST(Aggregate, TakesEmptyArraysAndSets) {
  Updates updates;
  Updates nothing;
  for (const int client : {0, 1, 2}) {
    updates.add({.client = client}, set_of({}));
    nothing.add({.client = client}, {});
  }
  for (const std::vector<FederatedAggregation>& rules : {kMeans, kOthers}) {
    for (const FederatedAggregation& rule : rules) {
      EXPECT_THAT(aggregate(rule, updates), ElementsAre(IsEmpty()));
      EXPECT_THAT(aggregate(rule, nothing), IsEmpty());
    }
  }
}

TEST(Aggregate, KrumBearsChangesBeyondTheRangeOfADouble) {
  const double largest = std::numeric_limits<double>::max();
  Updates updates;
  for (int client = 0; client < 5; ++client) {
    const bool is_hostile = client < 1;
    updates.add({.client = client}, set_of({is_hostile ? largest : client}, DataType::float64),
                set_of({is_hostile ? -largest : 0}, DataType::float64));
  }
  EXPECT_EQ(merged(Krum{.byzantine = 1}, updates), 2);
  EXPECT_EQ(merged(MultiKrum{.byzantine = 1}, updates), 2.5);
  EXPECT_EQ(merged(Median{}, updates), 3);
}

TEST(NormOf, IsTheLengthOfTheChange) {
  const ParameterSet values = set_of({4, 6});
  const ParameterSet base = set_of({1, 2});
  EXPECT_EQ(norm_of({.values = &values, .base = &base}), 5);
  EXPECT_EQ(norm_of({.weight = 3, .discount = 0.1, .values = &values, .base = &base}), 5);
  EXPECT_EQ(norm_of({.values = &base, .base = &base}), 0);
  const ParameterSet many = set_of(std::vector<double>(10'000, 2));
  EXPECT_EQ(norm_of({.values = &many}), 200);
  EXPECT_EQ(norm_of({.values = &many}, {false}), 0);
}

// --- one at a time ---

TEST(MeanOfUpdates, IsWhatAggregateMakesOfThemInTheSameOrder) {
  Updates updates;
  for (int client = 0; client < 5; ++client) {
    updates.add({.client = client, .weight = 1.0 + client, .discount = client == 2 ? 0.3 : 1},
                set_of({0.1 * client, 1.0 / (client + 1)}));
  }
  for (const double max_norm : {0.0, 0.4}) {
    MeanOfUpdates mean(max_norm);
    EXPECT_EQ(mean.count(), 0);
    for (const ClientUpdate& update : std::span<const ClientUpdate>(updates)) mean.add(update);
    EXPECT_EQ(mean.count(), 5);
    const FederatedAggregation rule =
        max_norm == 0 ? FederatedAggregation(FedAvg{}) : NormClipping{.max_norm = max_norm};
    EXPECT_EQ(mean.result(), aggregate(rule, updates));
    EXPECT_EQ(mean.result(), mean.result());
  }
}

TEST(MeanOfUpdates, StartsAnewWhenCleared) {
  MeanOfUpdates mean;
  const ParameterSet one = set_of({1, 2});
  const ParameterSet other = set_of({5});
  mean.add({.values = &one});
  mean.clear();
  EXPECT_EQ(mean.count(), 0);
  mean.add({.weight = 7, .values = &other});
  EXPECT_THAT(mean.result(), ElementsAre(ElementsAre(5)));
}

TEST(MeanOfUpdates, RefusesWhatHasNoMean) {
  MeanOfUpdates mean;
  EXPECT_EQ(usage_error([&] { mean.result(); }), "the updates weigh 0 together, so they have no mean");
  const ParameterSet one = set_of({1});
  mean.add({.weight = 0, .values = &one});
  mean.add({.discount = 0, .values = &one});
  EXPECT_EQ(mean.count(), 2);
  EXPECT_EQ(usage_error([&] { mean.result(); }), "the updates weigh 0 together, so they have no mean");
  EXPECT_EQ(usage_error([&] { mean.add({.client = 4, .weight = -1, .values = &one}); }),
            "client 4: expected a weight from 0 on, found -1");
  EXPECT_EQ(usage_error([&] { mean.add({.client = 4, .discount = std::nan(""), .values = &one}); }),
            "client 4: expected a discount from 0 on, found nan");
  EXPECT_EQ(usage_error([&] { mean.add({.client = 4}); }), "client 4 brought no values");
  const ParameterSet two = set_of({1, 2});
  EXPECT_EQ(usage_error([&] { mean.add({.client = 4, .values = &two}); }),
            R"(client 4: expected "weight", float32 [1], found "weight", float32 [2])");
  EXPECT_EQ(mean.count(), 2);
  mean.add({.values = &one});
  EXPECT_THAT(mean.result(), ElementsAre(ElementsAre(1)));
  EXPECT_EQ(usage_error([] { MeanOfUpdates(-1); }), "expected a max_norm from 0 on, found -1");
}

// --- what is refused ---

TEST(Aggregate, SaysHowManyUpdatesARuleNeedsAndHowManyThereAre) {
  struct Case {
    FederatedAggregation rule;
    std::int64_t least;
    std::string message;  // of one fewer
  };
  const std::vector<Case> cases = {
      {FedAvg{}, 1, "FedAvg: expected at least 1 update, found 0"},
      {strategy::FedProx{}, 1, "FedProx: expected at least 1 update, found 0"},
      {strategy::FedYogi{}, 1, "FedYogi: expected at least 1 update, found 0"},
      {strategy::FedAvgM{}, 1, "FedAvgM: expected at least 1 update, found 0"},
      {strategy::FedAdam{}, 1, "FedAdam: expected at least 1 update, found 0"},
      {strategy::FedAdagrad{}, 1, "FedAdagrad: expected at least 1 update, found 0"},
      {Median{}, 1, "Median: expected at least 1 update, found 0"},
      {TrimmedMean{}, 1, "TrimmedMean: expected at least 1 update, found 0"},
      {NormClipping{}, 1, "NormClipping: expected at least 1 update, found 0"},
      {Krum{}, 3, "Krum: expected at least 3 updates, for 0 that may be hostile, found 2"},
      {Krum{4}, 11, "Krum: expected at least 11 updates, for 4 that may be hostile, found 10"},
      {MultiKrum{2}, 7, "MultiKrum: expected at least 7 updates, for 2 that may be hostile, found 6"},
      {MultiKrum{2, 5}, 7, "MultiKrum: expected at least 7 updates, for 2 that may be hostile, found 6"},
      {MultiKrum{2, 9}, 9, "MultiKrum: expected at least 9 updates, to keep 9, found 8"},
      {Bulyan{}, 3, "Bulyan: expected at least 3 updates, for 0 that may be hostile, found 2"},
      {Bulyan{2}, 11, "Bulyan: expected at least 11 updates, for 2 that may be hostile, found 10"},
  };
  for (const Case& its : cases) {
    SCOPED_TRACE(its.message);
    EXPECT_EQ(least_updates(its.rule), its.least);
    EXPECT_EQ(usage_error([&] { refuse_too_few(its.rule, its.least - 1); }), its.message);
    EXPECT_NO_THROW(refuse_too_few(its.rule, its.least));
    const Updates enough(std::vector<double>(static_cast<std::size_t>(its.least), 1));
    const std::span<const ClientUpdate> updates = enough;
    EXPECT_EQ(usage_error([&] { aggregate(its.rule, updates.first(updates.size() - 1)); }), its.message);
    EXPECT_EQ(merged(its.rule, updates), 1);
  }
  EXPECT_EQ(usage_error([] {
              krum_order(Updates({1, 2}), 0);
            }),
            "Krum: expected at least 3 updates, for 0 that may be hostile, found 2");
}

TEST(Aggregate, RefusesRulesThatNobodyCanFollow) {
  const auto message = [](const FederatedAggregation& rule) { return usage_error([&] { least_updates(rule); }); };
  EXPECT_EQ(message(TrimmedMean{0.5}), "TrimmedMean: expected a fraction from 0 to below 0.5, found 0.5");
  EXPECT_EQ(message(TrimmedMean{-0.1}), "TrimmedMean: expected a fraction from 0 to below 0.5, found -0.1");
  EXPECT_EQ(message(TrimmedMean{std::nan("")}), "TrimmedMean: expected a fraction from 0 to below 0.5, found nan");
  EXPECT_EQ(message(Krum{-1}), "Krum: expected byzantine from 0 to 100000000, found -1");
  EXPECT_EQ(message(Bulyan{std::numeric_limits<std::int64_t>::max()}),
            "Bulyan: expected byzantine from 0 to 100000000, found 9223372036854775807");
  EXPECT_EQ(message(MultiKrum{0, -2}), "MultiKrum: expected keep from 0 on, found -2");
  EXPECT_EQ(message(NormClipping{0}), "NormClipping: expected a max_norm above 0, found 0");
}

TEST(Aggregate, RefusesUpdatesThatDoNotFitAndSaysWhose) {
  const Updates good({1, 2, 3});
  const auto message = [&](const ClientUpdate& bad, const std::vector<bool>& is_trained = {}) {
    const std::span<const ClientUpdate> others = good;
    std::vector<ClientUpdate> updates(others.begin(), others.end());
    updates.push_back(bad);
    const std::string first = usage_error([&] { aggregate(FedAvg{}, updates, is_trained); });
    for (const FederatedAggregation& rule : kOthers)
      EXPECT_EQ(usage_error([&] { aggregate(rule, updates, is_trained); }), first);
    EXPECT_EQ(usage_error([&] { krum_order(updates, 0, is_trained); }), first);
    return first;
  };
  const ParameterSet one = set_of({1});
  const ParameterSet two = set_of({1, 2});
  const ParameterSet none;
  const ParameterSet half = set_of({1}, DataType::float16);
  EXPECT_EQ(message({.client = 7}), "client 7 brought no values");
  EXPECT_EQ(message({.client = 7, .values = &two}),
            R"(client 7: expected "weight", float32 [1], found "weight", float32 [2])");
  EXPECT_EQ(message({.client = 7, .values = &half}),
            R"(client 7: expected "weight", float32 [1], found "weight", float16 [1])");
  EXPECT_EQ(message({.client = 7, .values = &none}), "client 7: expected 1 arrays, found 0");
  EXPECT_EQ(message({.client = 7, .values = &one, .base = &two}),
            R"(client 7's base: expected "weight", float32 [1], found "weight", float32 [2])");
  EXPECT_EQ(message({.client = 7, .discount = -1, .values = &one}),
            "client 7: expected a discount from 0 on, found -1");
  EXPECT_EQ(message({.client = 7, .values = &one}, {true, true}), "is_trained tells of 2 arrays, and there are 1");
  EXPECT_EQ(message({.client = 7, .values = &one}), "(no error)");
  EXPECT_EQ(usage_error([&] { norm_of({.client = 7, .values = &one, .base = &two}); }),
            R"(client 7's base: expected "weight", float32 [1], found "weight", float32 [2])");
}

TEST(Aggregate, RefusesWeightsThatLeaveNothing) {
  Updates updates({1, 2});
  updates[0].weight = 0;
  updates[1].discount = 0;
  EXPECT_EQ(usage_error([&] { aggregate(FedAvg{}, updates); }), "the updates weigh 0 together, so they have no mean");
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    updates[1].weight = weight;
    EXPECT_THAT(usage_error([&] { aggregate(FedAvg{}, updates); }),
                ::testing::StartsWith("client 1: expected a weight from 0 on, found"));
    EXPECT_EQ(merged(Median{}, updates), 0.5);  // rows do not count there
  }
}

}  // namespace
}  // namespace tutti
