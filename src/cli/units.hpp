// Figures as people read them.
//
//   format_seconds(0.00771);    // "7.71 ms"
//   format_bytes(1500);         // "1.46 KiB"
//   format_figure(1.8049);      // "1.80"
#pragma once

#include <string>

namespace tutti::cli {

// Three digits that count, in ns, us, ms or s.
std::string format_seconds(double seconds);

// Three digits that count, in B, KiB, MiB, GiB, TiB or PiB.
std::string format_bytes(double bytes);

// Three digits that count, without an exponent.
std::string format_figure(double value);

}  // namespace tutti::cli
