#include <tutti/base/nearest_name.hpp>

#include <gtest/gtest.h>

namespace tutti {
namespace {

const std::vector<std::string> kNames = {"source", "batch_size", "learning_rate", "lr", "Ring", "Tree"};

TEST(NearestName, FindsWhatWasMeant) {
  EXPECT_EQ(nearest_name("batchsize", kNames), "batch_size");
  EXPECT_EQ(nearest_name("BatchSize", kNames), "batch_size");
  EXPECT_EQ(nearest_name("batch-size", kNames), "batch_size");
  EXPECT_EQ(nearest_name("batch_sizes", kNames), "batch_size");
  EXPECT_EQ(nearest_name("batch_szie", kNames), "batch_size");
  EXPECT_EQ(nearest_name("soruce", kNames), "source");
  EXPECT_EQ(nearest_name("RING", kNames), "Ring");
  EXPECT_EQ(nearest_name("tre", kNames), "Tree");
  EXPECT_EQ(nearest_name("LR", kNames), "lr");
}

TEST(NearestName, DoesNotGuessWildly) {
  for (const char* name : {"", "x", "rl", "seed", "optimizer", "batch", "rate"})
    EXPECT_EQ(nearest_name(name, kNames), std::nullopt) << name;
  EXPECT_EQ(nearest_name("anything", {}), std::nullopt);
}

TEST(NearestName, PrefersTheNearest) {
  EXPECT_EQ(nearest_name("units2", {"units1", "units20", "unit2", "Units2"}), "Units2");
  EXPECT_EQ(nearest_name("conv9", {"conv10", "conv1", "conv2"}), "conv1");  // the first of equals
}

TEST(NearestName, CountsASwapOfNeighboursAsOneEdit) {
  EXPECT_EQ(nearest_name("sdg", {"sgd"}), "sgd");
  EXPECT_EQ(nearest_name("dgs", {"sgd"}), std::nullopt);
}

TEST(NearestName, PassesOverNamesOfMegabytes) {
  EXPECT_EQ(nearest_name(std::string(5'000'000, 'x'), kNames), std::nullopt);
}

}  // namespace
}  // namespace tutti
