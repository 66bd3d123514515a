#include <tutti/sync/gradient_buffers.hpp>

#include <limits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/sync/gradient_sync.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using testing::usage_error;

const std::vector<NamedShape>& shapes() {
  static const std::vector<NamedShape> three = {{"weight", {2, 3}}, {"bias", {3}}, {"scale", {}}};
  return three;
}

TEST(GradientBuffers, LieOneBehindTheOther) {
  const GradientBuffers gradients(shapes(), DataType::float64);
  EXPECT_EQ(gradients.type(), DataType::float64);
  EXPECT_EQ(gradients.all().length(), 10u);
  ASSERT_EQ(gradients.pieces().size(), 3u);
  EXPECT_EQ(gradients.pieces()[0].name, "weight");
  EXPECT_THAT(gradients.pieces()[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(gradients.pieces()[0].slice, (Slice{0, 6}));
  EXPECT_EQ(gradients.pieces()[1].slice, (Slice{6, 3}));
  EXPECT_EQ(gradients.pieces()[2].slice, (Slice{9, 1}));
  EXPECT_EQ(gradients["bias"].data(), gradients.all().data() + 6 * sizeof(double));
  EXPECT_EQ(gradients["bias"].length(), 3u);
  EXPECT_EQ(gradients["bias"].type(), DataType::float64);
  EXPECT_EQ(gradients[1].data(), gradients["bias"].data());
}

TEST(GradientBuffers, BeginAsZerosOfFloat32) {
  const GradientBuffers gradients(shapes());
  const auto* values = reinterpret_cast<const float*>(gradients.all().data());
  EXPECT_EQ(std::vector<float>(values, values + gradients.all().length()), std::vector<float>(10));
}

TEST(GradientBuffers, MayLieInMemoryOfTheCallers) {
  std::vector<float> memory(10);
  const GradientBuffers gradients(shapes(), memory);
  EXPECT_EQ(gradients["bias"].data(), reinterpret_cast<std::byte*>(&memory[6]));
  EXPECT_EQ(usage_error([&] { GradientBuffers(shapes(), Array(memory).slice(0, 9)); }),
            "gradients of 10 elements together do not lie in an array of 9");
}

TEST(GradientBuffers, TakeTheirMemoryAlong) {
  GradientBuffers gradients(shapes());
  const std::byte* before = gradients["bias"].data();
  const GradientBuffers moved = std::move(gradients);
  EXPECT_EQ(moved["bias"].data(), before);
}

TEST(GradientBuffers, MayBeEmpty) {
  EXPECT_EQ(GradientBuffers({}).all().length(), 0u);
  const GradientBuffers none({{"nothing", {4, 0, 2}}, {"something", {2}}});
  EXPECT_EQ(none["nothing"].length(), 0u);
  EXPECT_EQ(none["something"].length(), 2u);
}

TEST(GradientBuffers, RefuseWhatCannotBe) {
  EXPECT_EQ(usage_error([] { GradientBuffers({{"a", {1}}, {"a", {2}}}); }), "two gradients have the name 'a'");
  EXPECT_EQ(usage_error([] {
              GradientBuffers({{"a", {4, -1}}});
            }),
            "the gradient 'a' has a negative dimension: [4, -1]");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(usage_error([] {
              GradientBuffers({{"a", {kMost, 4}}});
            }),
            "the gradient 'a' is larger than any memory: [9223372036854775807, 4]");
  EXPECT_EQ(usage_error([] {
              GradientBuffers({{"a", {kMost / 8}}, {"b", {kMost / 8}}});
            }),
            "gradients are together larger than any memory");
  EXPECT_EQ(usage_error([] {
              GradientBuffers({{"a", {1}}}, DataType::float16);
            }),
            "gradients are float32 or float64, not float16");
}

TEST(GradientBuffers, NameTheNearestOfAnUnknownOne) {
  const GradientBuffers gradients(shapes());
  EXPECT_EQ(usage_error([&] { gradients["wieght"]; }), "there is no gradient 'wieght'; did you mean 'weight'?");
  EXPECT_EQ(usage_error([&] { gradients["momentum"]; }), "there is no gradient 'momentum'");
  EXPECT_EQ(usage_error([&] { gradients[3]; }), "there are 3 gradients, and none with the index 3");
}

TEST(GradientBuffers, AreSynchronisedAsOneArrayUnlessASyncKnowsBetter) {
  class Doubling final : public GradientSync {
   public:
    void sync_gradients(Array gradients) override {
      auto* values = reinterpret_cast<float*>(gradients.data());
      for (std::size_t i = 0; i < gradients.length(); ++i) values[i] *= 2;
    }
  } doubling;
  std::vector<float> memory = {1, 2};
  GradientBuffers gradients({{"a", {1}}, {"b", {1}}}, memory);
  doubling.sync_buffers(gradients);
  EXPECT_THAT(memory, ElementsAre(2, 4));
}

}  // namespace
}  // namespace tutti
