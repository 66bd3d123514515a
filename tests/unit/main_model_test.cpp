#include <tutti/coordinate/main_model.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/one_array.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using testing::doubles;
using ::testing::ElementsAre;
using testing::numbers_of;
using testing::usage_error;

void add_one(ParameterSet& set, std::int64_t) {
  for (NamedArray& array : set) {
    for (double& value : array.values<double>()) ++value;
  }
}

const void* place_of(const ModelSnapshot& snapshot) { return (*snapshot.parameters)[0].bytes().data(); }

TEST(MainModel, HasNothingAtFirst) {
  MainModel model;
  EXPECT_TRUE(model.empty());
  EXPECT_EQ(model.snapshot().parameters, nullptr);
  EXPECT_EQ(model.version(), 0);
  EXPECT_EQ(usage_error([&] { model.change(add_one); }), "there are no parameters to change");
  EXPECT_EQ(usage_error([&] { model.set(std::shared_ptr<const ParameterSet>()); }), "expected parameters, found none");
  model.hold([](const ParameterSet&, std::int64_t) { FAIL(); });
}

TEST(MainModel, LeavesSnapshotsAsTheyAre) {
  for (const bool never_fails : {false, true}) {
    MainModel model;
    model.set(doubles({0}));
    std::vector<ModelSnapshot> snapshots;
    for (int i = 0; i < 5; ++i) {
      snapshots.push_back(model.snapshot());
      EXPECT_EQ(model.change(add_one, never_fails), i + 1);
    }
    for (int i = 0; i < 5; ++i) {
      const ModelSnapshot& its = snapshots[static_cast<std::size_t>(i)];
      EXPECT_EQ(its.version, i);
      EXPECT_THAT(numbers_of(*its.parameters), ElementsAre(i));
    }
  }
}

TEST(MainModel, KeepsSnapshotsForLongerThanItLives) {
  ModelSnapshot snapshot;
  {
    MainModel model;
    model.set(doubles({3}));
    model.change(add_one);
    snapshot = model.snapshot();
  }
  EXPECT_THAT(numbers_of(*snapshot.parameters), ElementsAre(4));
}

TEST(MainModel, IsChangedInItsPlaceWhereNobodyLooks) {
  MainModel model;
  model.set(doubles({0}));
  const void* const place = place_of(model.snapshot());
  model.change(add_one, true);
  EXPECT_EQ(place_of(model.snapshot()), place);
  const ModelSnapshot held = model.snapshot();
  model.change(add_one, true);
  EXPECT_NE(place_of(model.snapshot()), place);
}

TEST(MainModel, UsesMemoryAgainThatNobodyReads) {
  MainModel model;
  model.set(doubles({0}));
  const void* const first = place_of(model.snapshot());
  model.change(add_one);
  const void* const second = place_of(model.snapshot());
  for (int i = 0; i < 4; ++i) {
    model.change(add_one);
    EXPECT_EQ(place_of(model.snapshot()), i % 2 == 0 ? first : second);
  }
}

TEST(MainModel, NeverChangesWhatItWasGiven) {
  const auto given = std::make_shared<const ParameterSet>(doubles({1}));
  MainModel model;
  model.set(given);
  EXPECT_EQ(model.snapshot().parameters, given);
  model.change(add_one, true);
  model.change(add_one, true);
  EXPECT_THAT(numbers_of(*given), ElementsAre(1));
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(3));
}

TEST(MainModel, CountsAnotherModelAsAChange) {
  MainModel model;
  model.set(doubles({1}));
  EXPECT_EQ(model.version(), 0);
  model.set(doubles({2}));
  EXPECT_EQ(model.version(), 1);
  model.set(std::make_shared<const ParameterSet>(doubles({3})));
  EXPECT_EQ(model.version(), 2);
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(3));
}

TEST(MainModel, IsAsItWasWhereAChangeFails) {
  MainModel model;
  model.set(doubles({1}));
  const auto fails = [](ParameterSet& set, std::int64_t version) {
    add_one(set, version);
    throw std::runtime_error("no");
  };
  EXPECT_THROW(model.change(fails), std::runtime_error);
  EXPECT_EQ(model.version(), 0);
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(1));
  model.change(add_one);
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(2));
}

TEST(MainModel, GoesOnWhereAChangeFailsThatSaidItNeverDoes) {
  MainModel model;
  model.set(doubles({1}));
  model.change(add_one, true);
  const auto fails = [](ParameterSet&, std::int64_t) { throw std::runtime_error("no"); };
  EXPECT_THROW(model.change(fails, true), std::runtime_error);
  EXPECT_EQ(model.snapshot().version, 1);  // nobody waits for ever
  model.change(add_one, true);
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(3));
}

TEST(MainModel, HasWhoWantsASnapshotWaitForOneChangeAtMost) {
  MainModel model;
  model.set(doubles({0}));
  std::latch begun(1);
  std::latch goes_on(1);
  std::jthread changes([&] {
    model.change(
        [&](ParameterSet& set, std::int64_t version) {
          begun.count_down();
          goes_on.wait();
          add_one(set, version);
        },
        true);
  });
  begun.wait();
  auto snapshot = std::async(std::launch::async, [&] { return model.snapshot(); });
  goes_on.count_down();
  changes.join();
  EXPECT_THAT(numbers_of(*snapshot.get().parameters), ElementsAre(1));
}

TEST(MainModel, GoesBackToACheckpoint) {
  MainModel model;
  model.set(doubles({1}));
  for (int i = 0; i < 3; ++i) model.change(add_one);
  const ModelSnapshot held = model.snapshot();
  EXPECT_THROW(model.restore(doubles({9}), 7, [] { throw UsageError("no"); }), UsageError);
  EXPECT_EQ(model.version(), 3);
  model.restore(doubles({9}), 7);
  EXPECT_EQ(model.snapshot().version, 7);
  EXPECT_THAT(numbers_of(*model.snapshot().parameters), ElementsAre(9));
  EXPECT_THAT(numbers_of(*held.parameters), ElementsAre(4));
  EXPECT_EQ(model.change(add_one), 8);
}

// All numbers of all arrays are the version, while writers go on and some snapshots are held for long.
TEST(MainModel, GivesReadersOneWholeVersion) {
  for (const bool never_fails : {false, true}) {
    MainModel model;
    ParameterSet set;
    for (const char* name : {"a", "b", "c"}) set.add({.name = name, .shape = {64}, .type = DataType::float64});
    model.set(std::move(set));
    constexpr int kChanges = 2000;
    std::atomic<int> writing = 2;
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&] {
        for (int i = 0; i < kChanges; ++i) model.change(add_one, never_fails);
        --writing;
      });
    }
    for (std::uint64_t reader = 0; reader < 2; ++reader) {
      threads.emplace_back([&, reader] {
        RandomStream draws({reader});
        std::vector<ModelSnapshot> held(4);
        std::int64_t last = 0;
        const auto refuse_mixed = [](const ModelSnapshot& snapshot) {
          for (const NamedArray& array : *snapshot.parameters) {
            for (const double value : array.values<double>()) ASSERT_EQ(value, snapshot.version);
          }
        };
        while (writing > 0) {
          const ModelSnapshot now = model.snapshot();
          ASSERT_GE(now.version, last);
          last = now.version;
          refuse_mixed(now);
          ModelSnapshot& before = held[draws.below(held.size())];
          if (before.parameters) refuse_mixed(before);
          if (draws.below(2) == 0) before = now;
        }
      });
    }
    threads.clear();
    EXPECT_EQ(model.version(), 2 * kChanges);
    EXPECT_EQ(numbers_of(*model.snapshot().parameters)[0], 2 * kChanges);
  }
}

}  // namespace
}  // namespace tutti
