#include "support/soak.hpp"

namespace tutti::testing {
namespace {

class Soak : public ::testing::TestWithParam<WorldKind> {};

INSTANTIATE_TEST_SUITE_P(Worlds, Soak, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(Soak, TenThousandRoundsOfRandomCallsLengthsAndDelays) {
  soak(GetParam(), 2, 4000, 1);
  soak(GetParam(), 3, 3000, 2);
  soak(GetParam(), 4, 3000, 3);
}

}  // namespace
}  // namespace tutti::testing
