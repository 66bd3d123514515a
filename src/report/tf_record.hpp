// The framing of TensorFlow's record files: a length, the bytes, and a checksum of each.
//
//   file.write(tf_record(bytes));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::detail {

std::string tf_record(std::string_view bytes);

// Appends a number as it lies in such files: the lowest byte first.
template <typename Number>
void append_little_endian(std::string& text, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) text += static_cast<char>((number >> (8 * i)) & 0xffu);
}

}  // namespace tutti::detail
