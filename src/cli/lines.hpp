// Output of several programs in one stream, line by line.
//
//   Lines lines("[2] ");
//   lines.add("half a li", text);        // text is empty yet
//   lines.add("ne\nand more", text);     // "[2] half a line\n"
//   lines.finish(text);                  // "[2] half a line\n[2] and more\n"
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace tutti::cli {

// A line longer than this is passed on in pieces, each a line of its own.
inline constexpr std::size_t kLongestLine = 65536;

class Lines {
 public:
  explicit Lines(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends those lines to `text` that are complete.
  void add(std::string_view bytes, std::string& text);
  // Appends the last line, if it had no end, and gives it one.
  void finish(std::string& text);

 private:
  std::string prefix_;
  std::string partial_;
};

}  // namespace tutti::cli
