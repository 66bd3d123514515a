#include <tutti/sync/sync_strategy.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

TEST(SyncStrategy, IsKnownByItsName) {
  for (SyncStrategy strategy : {SyncStrategy::all_reduce, SyncStrategy::reduce_to_root, SyncStrategy::no_sync})
    EXPECT_EQ(parse_sync_strategy(to_string(strategy)), strategy);
  EXPECT_EQ(to_string(SyncStrategy::reduce_to_root), "ReduceToRoot");
  EXPECT_EQ(testing::usage_error([] { parse_sync_strategy("AllReduced"); }),
            "there is no way to synchronise 'AllReduced'; there is: AllReduce, ReduceToRoot, NoSync; did you mean "
            "'AllReduce'?");
}

}  // namespace
}  // namespace tutti
