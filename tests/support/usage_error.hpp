// What a call complains about, so that a test can compare the sentence.
//
//   EXPECT_EQ(usage_error([] { parse_bytes("4 bananas"); }), "'4 bananas' is no number of bytes; ...");
#pragma once

#include <string>
#include <utility>

#include <tutti/base/error.hpp>

namespace tutti::testing {

// The text of the UsageError that `call` throws; any other exception passes through and fails the test.
template <typename Call>
std::string usage_error(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

// The same of any Error.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace tutti::testing
