// Learning rates over a run: against closed forms, and what PyTorch's schedulers give.
#include <tutti/train/schedule.hpp>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::HasSubstr;

Schedule read(const std::string& text) {
  return schedule_from_json(JsonDocument::parse("{\"schedule\": " + text + "}", "run.json").root().at("schedule"));
}

std::vector<double> factors(const Schedule& schedule, std::int64_t steps, std::int64_t steps_per_epoch = 10) {
  std::vector<double> all;
  for (std::int64_t step = 0; step < steps; ++step)
    all.push_back(rate_factor(schedule, {.step = step, .steps = steps, .steps_per_epoch = steps_per_epoch}));
  return all;
}

TEST(Schedule, ConstantIsOne) {
  for (const double factor : factors(read(R"("constant")"), 20)) EXPECT_EQ(factor, 1);
}

TEST(Schedule, StepMultipliesEverySoManyEpochs) {
  const std::vector<double> all = factors(read(R"({"name": "step", "every": 2, "factor": 0.5})"), 60);
  EXPECT_EQ(all[0], 1);
  EXPECT_EQ(all[19], 1);
  EXPECT_EQ(all[20], 0.5);
  EXPECT_EQ(all[59], 0.25);
}

TEST(Schedule, CosineAndLinearGoDownToTheLastStep) {
  const std::vector<double> cosine = factors(read(R"({"name": "cosine", "to": 0.1})"), 11);
  const std::vector<double> linear = factors(read(R"({"name": "linear", "to": 0.1})"), 11);
  for (std::size_t i = 0; i < cosine.size(); ++i) {
    // torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.1), lr 1
    EXPECT_NEAR(cosine[i], 0.1 + 0.9 * (1 + std::cos(M_PI * static_cast<double>(i) / 10)) / 2, 1e-12);
    EXPECT_NEAR(linear[i], 1 - 0.09 * static_cast<double>(i), 1e-12);
  }
  EXPECT_NEAR(cosine.back(), 0.1, 1e-15);
}

// torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1, total_steps=10).
TEST(Schedule, OneCycleIsPyTorchs) {
  const std::vector<double> expected{0.04,
                                     0.52,
                                     1.0,
                                     0.9504846320134737,
                                     0.8117456539497631,
                                     0.6112620219362893,
                                     0.38874197806371075,
                                     0.18825834605023697,
                                     0.049519367986526286,
                                     4e-06};
  const std::vector<double> found = factors(read(R"("one_cycle")"), 10);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

TEST(Schedule, WarmsUpInAStraightLineAndGoesOnFromThere) {
  const std::vector<double> all = factors(read(R"({"name": "cosine", "warmup": 4})"), 14);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(all[i], static_cast<double>(i + 1) / 5, 1e-15);
  EXPECT_EQ(all[4], 1);
  EXPECT_NEAR(all.back(), 0, 1e-15);
}

TEST(Schedule, OfAnyLengthStaysBetweenNothingAndOne) {
  for (const char* text : {R"("constant")", R"({"name": "step", "every": 1})", R"("cosine")", R"("linear")",
                           R"("one_cycle")", R"({"name": "one_cycle", "rise": 1})",
                           R"({"name": "one_cycle", "rise": 0})", R"({"name": "cosine", "warmup": 100})"}) {
    for (const std::int64_t steps : {1, 2, 3, 50}) {
      for (const double factor : factors(read(text), steps, 7)) {
        EXPECT_GE(factor, 0) << text;
        EXPECT_LE(factor, 1) << text;
      }
    }
  }
}

TEST(Schedule, IsWrittenAsItIsRead) {
  for (const char* text : {R"({"name":"constant"})", R"({"name":"step","every":3,"factor":0.5})",
                           R"({"name":"cosine","to":0.25,"warmup":7})", R"({"name":"linear","to":0.0})",
                           R"({"name":"one_cycle","rise":0.5,"from":0.25,"to":0.125})"})
    EXPECT_EQ(to_json(read(text)).dump(), text);
}

TEST(Schedule, RefusesWhatCannotBe) {
  const auto refused = [](const std::string& text) { return testing::usage_error([&] { (void)read(text); }); };
  EXPECT_THAT(refused(R"("cosin")"), HasSubstr("schedule: expected one of"));
  EXPECT_THAT(refused(R"("step")"), HasSubstr("schedule: expected an object with \"name\" and \"every\""));
  EXPECT_THAT(refused(R"({"name": "step", "every": 0})"), HasSubstr("schedule.every: expected"));
  EXPECT_THAT(refused(R"({"name": "cosine", "to": 2})"), HasSubstr("schedule.to: expected a number from 0 to 1"));
  EXPECT_THAT(refused(R"({"name": "cosine", "warmup": -1})"), HasSubstr("schedule.warmup: expected"));
  EXPECT_THAT(refused(R"({"name": "cosine", "rise": 0.5})"), HasSubstr("unknown key"));
  EXPECT_THAT(refused("3"), HasSubstr("schedule: expected"));
}

}  // namespace
}  // namespace tutti
