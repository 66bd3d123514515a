// Images changed by chance: what becomes of their pixels, and what the draws depend on.
#include <tutti/data/augment.hpp>

#include <array>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using Pixels = std::vector<float>;

Pixels changed(const Pixels& image, ImageSize size, ImageChange change) {
  Pixels result(image.size());
  change_image(image, result, size, change);
  return result;
}

TEST(Augment, FlipsAndShiftsAnImage) {
  const Pixels image{1, 2, 3,  //
                     4, 5, 6};
  const ImageSize size{.channels = 1, .height = 2, .width = 3};
  EXPECT_EQ(changed(image, size, {}), image);
  EXPECT_EQ(changed(image, size, {.is_flipped = true}), (Pixels{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(changed(image, size, {.right = 1}), (Pixels{1, 1, 2, 4, 4, 5}));
  EXPECT_EQ(changed(image, size, {.right = -2}), (Pixels{3, 3, 3, 6, 6, 6}));
  EXPECT_EQ(changed(image, size, {.down = -9, .right = 9}), (Pixels{4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(changed(image, size, {.down = 1}), (Pixels{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(changed(image, size, {.down = -1}), (Pixels{4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(changed(image, size, {.is_flipped = true, .right = 1}), (Pixels{3, 3, 2, 6, 6, 5}));
}

TEST(Augment, ChangesEachChannelAlike) {
  const Pixels image{1, 2, 10, 20, 100, 200};
  EXPECT_EQ(changed(image, {.channels = 3, .height = 1, .width = 2}, {.is_flipped = true}),
            (Pixels{2, 1, 20, 10, 200, 100}));
}

TEST(Augment, DrawsByTheSeedTheEpochAndTheRow) {
  const AugmentOptions options{.flip = true, .shift = 3};
  EXPECT_EQ(draw_change(options, 1, 2, 3), draw_change(options, 1, 2, 3));
  int alike = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    alike += draw_change(options, 1, 2, i) == draw_change(options, 1, 3, i) ? 1 : 0;
    alike += draw_change(options, 1, 2, i) == draw_change(options, 2, 2, i) ? 1 : 0;
    alike += draw_change(options, 1, 2, i) == draw_change(options, 1, 2, i + 1) ? 1 : 0;
  }
  EXPECT_LT(alike, 20);  // of 300, each with a chance of 1 in 98
}

TEST(Augment, DrawsEveryChangeAsOften) {
  std::map<std::tuple<bool, std::int64_t, std::int64_t>, int> times;
  for (std::int64_t row = 0; row < 18'000; ++row) {
    const ImageChange change = draw_change({.flip = true, .shift = 1}, 7, 0, row);
    ++times[{change.is_flipped, change.down, change.right}];
  }
  EXPECT_EQ(times.size(), 18u);
  for (const auto& [change, count] : times) EXPECT_NEAR(count, 1000, 5 * 31);
  EXPECT_EQ(draw_change({}, 7, 0, 5), ImageChange{});
}

// Rows in another order, or in other batches, become the same.
TEST(Augment, DoesNotDependOnTheBatch) {
  const ImageSize size{.channels = 2, .height = 5, .width = 4};
  constexpr std::size_t kPixels = 40;
  Pixels images(3 * kPixels);
  std::iota(images.begin(), images.end(), 0.0f);
  const Augmentation how{.options = {.flip = true, .shift = 2}, .size = size, .seed = 9, .epoch = 4};
  Pixels together(images.size());
  augment_images(images, together, how, std::array<std::int64_t, 3>{10, 11, 12});
  for (const std::size_t i : {2u, 0u, 1u}) {
    Pixels alone(kPixels);
    augment_images(std::span(images).subspan(i * kPixels, kPixels), alone, how,
                   std::array<std::int64_t, 1>{10 + static_cast<std::int64_t>(i)});
    EXPECT_TRUE(std::ranges::equal(alone, std::span(together).subspan(i * kPixels, kPixels)));
  }
  EXPECT_EQ(testing::usage_error([&] { augment_images(images, together, how, std::array<std::int64_t, 1>{0}); }),
            "expected 1 images of 40 pixels, and place for as many, found 120 and 120 pixels");
}

}  // namespace
}  // namespace tutti
