#include "support/soak.hpp"

namespace tutti::testing {
namespace {

class Soak : public ::testing::TestWithParam<WorldKind> {};

INSTANTIATE_TEST_SUITE_P(Worlds, Soak, ::testing::ValuesIn(world_kinds()), name_of);

// For threads that meet in unlucky moments, so the address sanitizer sees fewer.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kShare = kEveryWhereSanitized;
#else
constexpr int kShare = 1;
#endif

TEST_P(Soak, TenThousandRoundsOfRandomCallsLengthsAndDelays) {
  soak(GetParam(), 2, 4000 / kShare, 1);
  soak(GetParam(), 3, 3000 / kShare, 2);
  soak(GetParam(), 4, 3000 / kShare, 3);
}

}  // namespace
}  // namespace tutti::testing
