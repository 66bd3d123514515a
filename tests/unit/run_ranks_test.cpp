#include <tutti/collective/run_ranks.hpp>

#include <gtest/gtest.h>

namespace tutti::testing {
namespace {

TEST(RunRanks, RefusesZeroRanks) {
  EXPECT_THROW(run_ranks(0, [](Communicator&) {}), UsageError);
  EXPECT_THROW(run_ranks(-1, [](Communicator&) {}), UsageError);
}

}  // namespace
}  // namespace tutti::testing
