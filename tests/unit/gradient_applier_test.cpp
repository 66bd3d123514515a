// What waits to be applied, where much is merged into it.
#include "coordinate/gradient_applier.hpp"

#include <cstdint>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/one_array.hpp"

namespace tutti::detail {
namespace {

using testing::doubles;
using ::testing::ElementsAre;
using testing::numbers_of;
using ::testing::Pair;

TEST(GradientApplier, KeepsACountOfEachVersionHoweverManyAreMerged) {
  constexpr std::int64_t kMerges = 100'000;
  GradientApplier applier(make_update_rule(Sgd{.lr = 1}), GradientChangeMode::descent, {});
  applier.set_model(doubles({0}));
  const auto gradients = std::make_shared<const ParameterSet>(doubles({1}));
  const auto parameters = std::make_shared<const ParameterSet>(doubles({0}));
  GoodGradients newest = applier.good(gradients, {});
  for (std::int64_t i = 0; i < kMerges; ++i) {
    GradientOrigin origin;
    if (i % 4 == 0) origin.base = {.parameters = parameters, .version = 7 - i % 8};
    merge_gradients(newest, applier.good(gradients, origin));
  }
  EXPECT_THAT(newest.versions, ElementsAre(Pair(GoodGradients::kNoVersion, 1 + kMerges * 3 / 4), Pair(3, kMerges / 8),
                                           Pair(7, kMerges / 8)));
  EXPECT_EQ(numbers_of(*newest.values)[0], kMerges + 1);
  applier.apply(newest);
  EXPECT_THAT(applier.staleness(), ElementsAre(Pair(0, kMerges + 1)));
}

}  // namespace
}  // namespace tutti::detail
