// What is still to be written to our standard output or error, without waiting for whoever reads it.
//
//   OutputQueue output(STDOUT_FILENO);
//   output.text() += "a line\n";
//   if (poll says that output.descriptor() can be written) output.write_some();
//
// The descriptor may be shared with other programs, so it stays as it is: a write that fits is what does not block.
#pragma once

#include <string>

namespace tutti::cli {

class OutputQueue {
 public:
  explicit OutputQueue(int descriptor);

  int descriptor() const { return descriptor_; }
  // Whole lines only.
  std::string& text() { return text_; }
  bool empty() const { return text_.size() == begin_; }
  bool full() const { return text_.size() - begin_ >= kFull; }
  // Whether a part of a line is out, so that nobody else should write to the same place.
  bool within_line() const { return begin_ > 0 && text_[begin_ - 1] != '\n'; }

  // Whole lines, where they fit. What cannot be written any more is dropped, and `problem` says why.
  void write_some();
  const std::string& problem() const { return problem_; }

 private:
  static constexpr std::size_t kFull = 1 << 20;

  int descriptor_;
  std::size_t most_at_once_;
  std::string text_;
  std::size_t begin_ = 0;
  std::string problem_;
};

}  // namespace tutti::cli
