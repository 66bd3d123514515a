#include "support/run_file_mutations.hpp"
#include "support/sample.hpp"

namespace tutti::testing {
namespace {

TEST(RunFile, IsReadOrRefusedAtAPlaceWhateverIsChangedInIt) { try_mutations(5'000 / kEveryWhereSanitized); }

}  // namespace
}  // namespace tutti::testing
