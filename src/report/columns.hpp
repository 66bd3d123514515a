// How much room text takes on a terminal, counted in columns.
//
//   columns_of("größe");              // 5
//   cut_to_columns("größe", 3);       // "grö"
#pragma once

#include <string>
#include <string_view>

namespace tutti::detail {

// The same text as a terminal can show it on one line: controls become blanks, and bytes that are no UTF-8 the sign for
// that.
std::string without_controls(std::string_view text);

// Of text without controls. Where terminals differ, the larger number.
int columns_of(std::string_view text);

// As much from the beginning as fits, in whole characters.
std::string cut_to_columns(std::string_view text, int columns);

}  // namespace tutti::detail
