// How far a run is, as one line for people.
//
//   progress_line({.step = 420, .steps = 1000, .epoch = 2, .epochs = 5, .loss = 0.1234, .seconds_left = 3723}, 66);
//   // [=====>         ]   420/1000  epoch 2/5  loss 0.1234  1:02:03 left
//
// Pure functions: the same state gives the same line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tutti/base/events.hpp>

namespace tutti {

// What is not known is left out.
struct ProgressState {
  std::string unit = "step";  // what people call a step
  std::int64_t step = 0;
  std::int64_t steps = 0;  // 0 where nobody knows
  std::int64_t epoch = 0;
  std::int64_t epochs = 0;
  std::int64_t members = 0;  // of a population, and those that are through with the generation that comes next
  std::int64_t members_through = 0;
  std::optional<double> loss = {};
  std::optional<NamedNumber> metric = {};
  std::optional<double> rows_per_second = {};
  std::optional<double> communication_share = {};  // of the time of a step: 0.12
  std::optional<double> seconds_left = {};
};

enum class BarStyle { ascii, lines };

// At most `width` columns of a terminal. Where there is little room, what matters least is left out: members first, the
// epoch, then the share of communication, rows per second, the bar, the metric, the time left, and the loss.
std::string progress_line(const ProgressState& state, int width, BarStyle bar = BarStyle::ascii);

// All of it, without a bar: "step 420/1000  epoch 2/5  loss 0.1234  1:02:03 left".
std::string progress_text(const ProgressState& state);

// "1:02:03", "2:05", "0:07".
std::string format_duration(double seconds);

// Four digits after the point, or an exponent where these say little: "0.1234", "1.234e-05", "nan".
std::string format_measure(double value);

}  // namespace tutti
