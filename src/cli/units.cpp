#include "cli/units.hpp"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace tutti::cli {

std::string format_figure(double value) {
  const double size = std::abs(value);
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string format_seconds(double seconds) {
  if (seconds < 999.5e-9) return format_figure(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return format_figure(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return format_figure(seconds * 1e3) + " ms";
  return format_figure(seconds) + " s";
}

std::string format_bytes(double bytes) {
  const std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{} {}", format_figure(bytes), units[unit]);
}

}  // namespace tutti::cli
