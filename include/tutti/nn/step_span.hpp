// Where a step's time went, by replica: what a timeline is drawn of.
#pragma once

#include <chrono>
#include <string>

#include <tutti/base/events.hpp>

namespace tutti {

// A stretch of a step's time, of one replica.
struct StepSpan {
  int replica = 0;  // among those of all processes
  event::SpanEnded::Kind kind = event::SpanEnded::Kind::compute;
  std::string name = {};  // "forward"
  std::chrono::steady_clock::time_point begin = {};
  std::chrono::steady_clock::time_point end = {};
};

}  // namespace tutti
