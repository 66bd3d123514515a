#include "support/soak.hpp"

namespace tutti::testing {
namespace {

class LongSoak : public ::testing::TestWithParam<WorldKind> {};

INSTANTIATE_TEST_SUITE_P(Worlds, LongSoak, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(LongSoak, AHundredThousandRoundsOnTwoToEightRanks) {
  for (int ranks = 2; ranks <= 8; ++ranks) soak(GetParam(), ranks, 15'000, 100 + static_cast<std::uint64_t>(ranks));
}

}  // namespace
}  // namespace tutti::testing
