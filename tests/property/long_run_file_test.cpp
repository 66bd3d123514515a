#include "support/run_file_mutations.hpp"

namespace tutti::testing {
namespace {

TEST(LongRunFile, IsReadOrRefusedAtAPlaceWhateverIsChangedInItAHundredThousandTimes) { try_mutations(100'000); }

}  // namespace
}  // namespace tutti::testing
