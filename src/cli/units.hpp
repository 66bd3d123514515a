// Figures as people read them.
//
//   format_seconds(0.00771);    // "7.71 ms"
//   format_figure(1.8049);      // "1.80"
#pragma once

#include <string>

namespace tutti::cli {

// Three digits that count, in ns, us, ms or s.
std::string format_seconds(double seconds);

// Three digits that count, without an exponent.
std::string format_figure(double value);

}  // namespace tutti::cli
