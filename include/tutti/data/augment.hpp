// Images a little changed each time they are seen, so that a network learns what does not depend on it: mirrored left
// to right, and shifted by a few pixels. Where a shift uncovers pixels, those of the edge are repeated.
//
//   Augmentation how{.options = {.flip = true, .shift = 2}, .size = {3, 32, 32}, .seed = 7, .epoch = 2};
//   augment_images(images, changed, how, row_numbers);
//
// What happens to an image follows from the seed, the epoch and the number of its row, whoever changes it and in
// whatever batch.
#pragma once

#include <cstdint>
#include <span>

namespace tutti {

struct AugmentOptions {
  bool flip = false;       // every other time
  std::int64_t shift = 0;  // up to so many pixels in each of the four directions, each as likely as the others

  friend bool operator==(const AugmentOptions&, const AugmentOptions&) = default;
};

struct ImageSize {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

struct ImageChange {
  bool is_flipped = false;  // before it is shifted
  std::int64_t down = 0;
  std::int64_t right = 0;

  friend bool operator==(const ImageChange&, const ImageChange&) = default;
};

struct Augmentation {
  AugmentOptions options = {};
  ImageSize size = {};
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

ImageChange draw_change(const AugmentOptions& options, std::uint64_t seed, std::int64_t epoch, std::int64_t row);

// `from` and `to` are two images.
void change_image(std::span<const float> from, std::span<float> to, ImageSize size, ImageChange change);

// Images one after the other, which stay as they are, changed. A UsageError where there are not as many as rows.
void augment_images(std::span<const float> from, std::span<float> to, const Augmentation& how,
                    std::span<const std::int64_t> rows);

}  // namespace tutti
