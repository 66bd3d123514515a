// Spans of time of all processes, told by the first one.
//
//   SpanGathering spans(training);
//   spans.add(result.spans);          // after each step
//   spans.flush();                    // at the end
#pragma once

#include <vector>

#include "training.hpp"

namespace tutti::detail {

class SpanGathering {
 public:
  explicit SpanGathering(const Training& training) : training_(training) {}

  void add(const std::vector<StepSpan>& spans);
  // All processes call it after the same steps, where they take steps together.
  void flush();

 private:
  const Training& training_;
  std::vector<event::SpanEnded> waiting_;  // to be sent
  int steps_ = 0;
};

}  // namespace tutti::detail
