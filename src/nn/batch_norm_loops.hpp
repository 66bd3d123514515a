// The loops of batch normalisation over the values of one rank. A value lies at (part * channels + channel) * inner +
// i: of [N, C, H, W] in libtorch's usual order a part is a row, and inner is H*W; in channels-last order a part is a
// pixel, and inner is 1.
//
// Sums are of float64 and have one fixed order. What f gives is added, or written, for each value: f(index, channel).
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace tutti {

struct ChannelLayout {
  std::size_t parts = 0;
  std::size_t channels = 0;
  std::size_t inner = 1;

  std::size_t values_per_channel() const { return parts * inner; }
};

template <typename F>
std::vector<double> sums_of_channels(const ChannelLayout& layout, F f) {
  std::vector<double> sums(layout.channels);
  if (layout.inner == 1) {
    // Four parts at once: a sum is fetched and put back a quarter as often.
    const std::size_t n = layout.channels;
    double* const sum = sums.data();
    std::size_t part = 0;
    for (; part + 4 <= layout.parts; part += 4) {
      const std::size_t first = part * n;
#pragma GCC ivdep
      for (std::size_t c = 0; c < n; ++c) {
        const std::size_t i = first + c;
        sum[c] += (f(i, c) + f(i + n, c)) + (f(i + 2 * n, c) + f(i + 3 * n, c));
      }
    }
    for (; part < layout.parts; ++part) {
      const std::size_t first = part * n;
#pragma GCC ivdep
      for (std::size_t c = 0; c < n; ++c) sum[c] += f(first + c, c);
    }
    return sums;
  }
  // Sums side by side do not wait for each other, and the compiler can take several at once.
  constexpr std::size_t kLanes = 8;
  for (std::size_t part = 0; part < layout.parts; ++part) {
    for (std::size_t c = 0; c < layout.channels; ++c) {
      const std::size_t first = (part * layout.channels + c) * layout.inner;
      const std::size_t whole = layout.inner - layout.inner % kLanes;
      std::array<double, kLanes> lanes{};
      for (std::size_t i = 0; i < whole; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(first + i + lane, c);
      }
      for (std::size_t i = whole; i < layout.inner; ++i) lanes[i - whole] += f(first + i, c);
      for (const double lane : lanes) sums[c] += lane;
    }
  }
  return sums;
}

template <typename T, typename F>
void write_channels(const ChannelLayout& layout, T* values, F f) {
  if (layout.inner == 1) {
    for (std::size_t part = 0; part < layout.parts; ++part) {
      const std::size_t first = part * layout.channels;
#pragma GCC ivdep
      for (std::size_t c = 0; c < layout.channels; ++c) values[first + c] = f(first + c, c);
    }
    return;
  }
  for (std::size_t part = 0; part < layout.parts; ++part) {
    for (std::size_t c = 0; c < layout.channels; ++c) {
      const std::size_t first = (part * layout.channels + c) * layout.inner;
#pragma GCC ivdep
      for (std::size_t i = first; i < first + layout.inner; ++i) values[i] = f(i, c);
    }
  }
}

}  // namespace tutti
