#include <tutti/data/augment.hpp>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "draws.hpp"

namespace tutti {

ImageChange draw_change(const AugmentOptions& options, std::uint64_t seed, std::int64_t epoch, std::int64_t row) {
  RandomStream draws({seed, detail::number_of(detail::Draws::augment), static_cast<std::uint64_t>(epoch),
                      static_cast<std::uint64_t>(row)});
  ImageChange change;
  // Each is drawn whether wanted or not: to switch one off leaves the other as it is.
  const bool is_heads = draws.below(2) == 1;
  const auto places = static_cast<std::uint64_t>(2 * options.shift + 1);
  change.is_flipped = options.flip && is_heads;
  change.down = static_cast<std::int64_t>(draws.below(places)) - options.shift;
  change.right = static_cast<std::int64_t>(draws.below(places)) - options.shift;
  return change;
}

void change_image(std::span<const float> from, std::span<float> to, ImageSize size, ImageChange change) {
  const auto [channels, height, width] = size;
  const std::int64_t right = std::clamp(change.right, -width, width);
  std::vector<float> mirrored(static_cast<std::size_t>(width));
  float* out = to.data();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t source = std::clamp<std::int64_t>(y - change.down, 0, height - 1);
      const float* line = from.data() + (channel * height + source) * width;
      if (change.is_flipped) {
        std::reverse_copy(line, line + width, mirrored.begin());
        line = mirrored.data();
      }
      // The edge on the left, the line itself, the edge on the right.
      out = std::fill_n(out, std::max<std::int64_t>(right, 0), line[0]);
      out = std::copy_n(line + std::max<std::int64_t>(-right, 0), width - std::abs(right), out);
      out = std::fill_n(out, std::max<std::int64_t>(-right, 0), line[width - 1]);
    }
  }
}

void augment_images(std::span<const float> from, std::span<float> to, const Augmentation& how,
                    std::span<const std::int64_t> rows) {
  const auto pixels = static_cast<std::size_t>(how.size.channels * how.size.height * how.size.width);
  if (from.size() != pixels * rows.size() || to.size() != from.size()) {
    throw UsageError(fmt::format("expected {} images of {} pixels, and place for as many, found {} and {} pixels",
                                 rows.size(), pixels, from.size(), to.size()));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ImageChange change = draw_change(how.options, how.seed, how.epoch, rows[i]);
    change_image(from.subspan(i * pixels, pixels), to.subspan(i * pixels, pixels), how.size, change);
  }
}

}  // namespace tutti
