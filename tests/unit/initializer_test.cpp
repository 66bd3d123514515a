#include <tutti/graph/initializer.hpp>

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::Each;
using namespace initializer;

std::vector<float> drawn(const Initializer& initializer, const Shape& shape, std::uint64_t seed = 1) {
  const std::vector<std::uint64_t> stream{seed, 2};
  return initial_values(initializer, shape, stream);
}

double mean_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
double deviation_of(const std::vector<float>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0) /
                   static_cast<double>(values.size()));
}

TEST(Initializer, DrawsWithTheMeanAndDeviationThatItSays) {
  const Shape shape{200, 50, 3};
  EXPECT_THAT(drawn(Constant{0.25}, shape), Each(0.25F));
  const std::vector<std::pair<Initializer, double>> cases{
      {Uniform{-0.3, 0.3}, 0.3 / std::sqrt(3.0)}, {Normal{0.02}, 0.02},
      {Xavier{false}, std::sqrt(2.0 / (750))},    {Xavier{true}, std::sqrt(2.0 / (750))},
      {Kaiming{false}, std::sqrt(2.0 / 150)},     {Kaiming{true}, std::sqrt(2.0 / 150)}};
  for (const auto& [initializer, deviation] : cases) {
    SCOPED_TRACE(to_json(initializer).dump());
    const std::vector<float> values = drawn(initializer, shape);
    ASSERT_EQ(values.size(), 30'000u);
    EXPECT_NEAR(mean_of(values), 0, 0.03 * deviation);
    EXPECT_NEAR(deviation_of(values), deviation, 0.03 * deviation);
    EXPECT_EQ(values, drawn(initializer, shape));
    EXPECT_NE(values, drawn(initializer, shape, 2));
  }
}

TEST(Initializer, OrthogonalRowsOrColumns) {
  for (const Shape& shape : {Shape{5, 9}, Shape{9, 5}, Shape{4, 2, 3}, Shape{1, 1}}) {
    const std::vector<float> values = drawn(Orthogonal{}, shape);
    const auto rows = static_cast<std::size_t>(shape[0]);
    const std::size_t columns = values.size() / rows;
    const bool by_row = rows <= columns;
    for (std::size_t a = 0; a < std::min(rows, columns); ++a) {
      for (std::size_t b = 0; b < std::min(rows, columns); ++b) {
        double product = 0;
        for (std::size_t k = 0; k < std::max(rows, columns); ++k)
          product += by_row ? values[a * columns + k] * values[b * columns + k]
                            : values[k * columns + a] * values[k * columns + b];
        EXPECT_NEAR(product, a == b ? 1 : 0, 1e-6);
      }
    }
  }
}

TEST(Initializer, IsReadAndWritten) {
  for (const char* text : {R"("zeros")", R"("ones")", R"({"constant":0.5})", R"({"uniform":[-0.1,0.2]})",
                           R"({"normal":0.02})", R"("xavier_uniform")", R"("xavier_normal")", R"("kaiming_uniform")",
                           R"("kaiming_normal")", R"("orthogonal")"}) {
    EXPECT_EQ(to_json(initializer_from_json(JsonDocument::parse(text).root())).dump(), text);
  }
}

TEST(Initializer, RefusesShapesItCannotFill) {
  EXPECT_EQ(testing::usage_error([] { (void)drawn(Kaiming{}, {3}); }), "an initializer for weights: [3] is none");
  EXPECT_EQ(testing::usage_error([] {
              (void)drawn(Constant{}, {1 << 30, 1 << 30});
            }),
            "an array of the shape [1073741824, 1073741824] fits no machine");
}

}  // namespace
}  // namespace tutti
