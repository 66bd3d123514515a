#include "axis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

namespace tutti::detail {
namespace {

constexpr double kWide = 20;
constexpr double kLargest = 1e300;  // so that differences are finite
constexpr double kAlike = 1e-9;     // of their size: nearer ones cannot be told apart

// The next of 1, 2, 5, 10, 20, ...
double round_step(double at_least) {
  const double power = std::pow(10, std::floor(std::log10(at_least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= at_least * (1 - kAlike)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

Axis Axis::linear(const std::vector<double>& values) {
  if (values.empty()) return {0, 1, false};
  const auto [least, most] = std::ranges::minmax(values);
  const double low = std::clamp(least, -kLargest, kLargest);
  const double high = std::clamp(most, -kLargest, kLargest);
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low > kAlike * size) return {low, high, false};
  const double room = size > 0 ? 0.1 * size : 1;
  return {low - room, high + room, false};
}

Axis Axis::of(const std::vector<double>& values) {
  if (values.empty()) return linear(values);
  const auto [least, most] = std::ranges::minmax(values);
  if (least > 0 && most / kWide >= least) return {least, most, true};
  return linear(values);
}

double Axis::share(double value) const {
  value = std::clamp(value, low_, high_);
  if (is_logarithmic_) return (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_));
  return (value - low_) / (high_ - low_);
}

std::vector<Tick> Axis::ticks(double smallest_step) const {
  return is_logarithmic_ ? logarithmic_ticks() : linear_ticks(smallest_step);
}

std::vector<Tick> Axis::linear_ticks(double smallest_step) const {
  constexpr double kMost = 8;
  const double step = std::max(round_step((high_ - low_) / kMost), smallest_step);
  const double size = std::max(std::abs(low_), std::abs(high_));
  const bool is_readable = size < 1e6 && step >= 1e-6;
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - kAlike)));
  const int digits = std::max(1, static_cast<int>(std::ceil(std::log10(size / step))) + 1);
  std::vector<Tick> ticks;
  const auto last = static_cast<std::int64_t>(std::floor(high_ / step + kAlike));
  for (auto i = static_cast<std::int64_t>(std::ceil(low_ / step - kAlike)); i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks.push_back({value, i == 0        ? "0"
                            : is_readable ? fmt::format("{:.{}f}", value, decimals)
                                          : fmt::format("{:.{}g}", value, digits)});
  }
  return ticks;
}

std::vector<Tick> Axis::logarithmic_ticks() const {
  const int first = static_cast<int>(std::floor(std::log10(low_)));
  const int last = static_cast<int>(std::ceil(std::log10(high_)));
  const bool has_room = high_ / low_ < 1000;
  const int stride = has_room ? 1 : (last - first) / 8 + 1;
  std::vector<Tick> ticks;
  for (int power = first; power <= last; power += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && !has_room) break;
      const double value = factor * std::pow(10, power);
      if (value >= low_ * (1 - kAlike) && value <= high_ * (1 + kAlike))
        ticks.push_back({value, fmt::format("{:.6g}", value)});
    }
  }
  return ticks;
}

}  // namespace tutti::detail
