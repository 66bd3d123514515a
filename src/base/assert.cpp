#include <tutti/base/assert.hpp>

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace tutti::detail {

void assertion_failed(std::string_view file, int line, std::string_view expectation, std::string_view values) {
  fmt::print(stderr, "tutti: a bug in tutti itself: {}:{}: expected {}, have {}\n", file, line, expectation, values);
  std::fflush(stderr);
  std::abort();
}

}  // namespace tutti::detail
