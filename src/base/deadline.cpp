#include <tutti/base/deadline.hpp>

#include <cmath>

#include <fmt/format.h>

namespace tutti {

std::string to_string(Duration duration) {
  using namespace std::chrono;
  const auto count = static_cast<double>(duration.count());
  const double size = std::abs(count);
  if (count == 0) return "0 s";
  if (duration % minutes(1) == Duration::zero()) return fmt::format("{} min", duration / minutes(1));
  if (size >= 1e15) return fmt::format("{:.0f} s", count / 1e9);  // six digits would turn into 1e+06
  if (size >= 1e9) return fmt::format("{:.6g} s", count / 1e9);
  if (size >= 1e6) return fmt::format("{:.6g} ms", count / 1e6);
  return fmt::format("{:.6g} us", count / 1e3);
}

}  // namespace tutti
