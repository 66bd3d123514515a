// The sizes of a tensor, for people: "[2, 3]".
#pragma once

#include <sstream>
#include <string>

#include <c10/util/ArrayRef.h>

namespace tutti::detail {

inline std::string text_of(c10::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

}  // namespace tutti::detail
