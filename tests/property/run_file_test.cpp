#include "support/run_file_mutations.hpp"
#include "support/sample.hpp"

namespace tutti::testing {
namespace {

TEST(RunFile, IsReadOrRefusedAtAPlaceWhateverIsChangedInIt) { try_mutations(5'000 / kEveryWhereSanitized); }

TEST(LongRunFile, IsReadOrRefusedAtAPlaceWhateverIsChangedInItAHundredThousandTimes) { try_mutations(100'000); }

}  // namespace
}  // namespace tutti::testing
