// For what only a bug in tutti can make untrue. Prints both values and where, then aborts; always on.
//
//   TUTTI_ASSERT_EQ(header.length, slice.count);
#pragma once

#include <concepts>
#include <cstdint>
#include <sstream>
#include <string_view>

namespace tutti::detail {

[[noreturn]] void assertion_failed(std::string_view file, int line, std::string_view expectation,
                                   std::string_view values);

// A byte is a number here, not a character.
template <typename T>
decltype(auto) readable(const T& value) {
  if constexpr (std::same_as<T, std::int8_t> || std::same_as<T, std::uint8_t>)
    return static_cast<int>(value);
  else
    return (value);
}

template <typename A, typename B>
[[noreturn]] void comparison_failed(std::string_view file, int line, std::string_view expectation, const A& a,
                                    const B& b) {
  std::ostringstream values;
  values << readable(a) << " and " << readable(b);
  assertion_failed(file, line, expectation, values.str());
}

}  // namespace tutti::detail

#define TUTTI_ASSERT(condition) \
  (static_cast<bool>(condition) ? void() : ::tutti::detail::assertion_failed(__FILE__, __LINE__, #condition, "false"))

#define TUTTI_ASSERT_COMPARE(a, relation, b)                                                                           \
  do {                                                                                                                 \
    const auto& tutti_assert_a = (a);                                                                                  \
    const auto& tutti_assert_b = (b);                                                                                  \
    if (!(tutti_assert_a relation tutti_assert_b))                                                                     \
      ::tutti::detail::comparison_failed(__FILE__, __LINE__, #a " " #relation " " #b, tutti_assert_a, tutti_assert_b); \
  } while (false)

#define TUTTI_ASSERT_EQ(a, b) TUTTI_ASSERT_COMPARE(a, ==, b)
#define TUTTI_ASSERT_LE(a, b) TUTTI_ASSERT_COMPARE(a, <=, b)
#define TUTTI_ASSERT_LT(a, b) TUTTI_ASSERT_COMPARE(a, <, b)
