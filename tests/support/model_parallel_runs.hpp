// Model-parallel runs, and what they are compared by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/random_graphs.hpp"
#include "support/train_runs.hpp"

namespace tutti::testing {

inline const Json kDirect{{"protocol", "Direct"}};
inline Json pipeline(std::int64_t rows, const std::string& schedule = "1f1b") {
  return {{"protocol", "Pipeline"}, {"micro_batch_size", rows}, {"schedule", schedule}};
}

// A run of a random graph on one worker.
inline Json random_run(RandomStream& draws, const std::filesystem::path& output,
                       const RandomGraphOptions& options = {}) {
  const Json optimizers[] = {{{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}},
                             {{"name", "adam"}, {"lr", 0.01}},
                             {{"name", "adagrad"}, {"lr", 0.01}}};
  Json document = small_run(output);
  document["graph"] = random_graph(draws, options);
  document["optimizer"] = optimizers[draws.below(3)];
  document["train"] = {{"steps", 7}, {"evaluate_every", 4}};
  if (draws.below(2) == 0) document["train"]["clip_norm"] = 0.5;
  if (draws.below(3) == 0) document["train"]["accumulate"] = 2;
  return document;
}

inline Json cut_run(Json document, RandomStream& draws, int workers, const Json& communication,
                    const std::filesystem::path& output) {
  document["graph"]["strategy"] = random_cut(draws, document["graph"], workers, communication);
  document["workers"] = list_of_workers(workers);
  document["output"] = output.string();
  return document;
}

inline void expect_same_arrays(const std::filesystem::path& expected, const std::filesystem::path& found,
                               const std::string& what) {
  const ParameterSet all = arrays_in(expected);
  const ParameterSet others = arrays_in(found);
  ASSERT_EQ(all.size(), others.size()) << what;
  for (const NamedArray& array : all) {
    ASSERT_NE(others.find(array.name()), nullptr) << array.name() << ", " << what;
    EXPECT_TRUE(std::ranges::equal(array.bytes(), others.at(array.name()).bytes())) << array.name() << ", " << what;
  }
}

inline std::vector<double> losses_of(const Trained& trained) {
  std::vector<double> losses;
  for (const auto& step : trained.told->of<event::StepEnded>()) losses.push_back(step.loss);
  for (const auto& one : trained.told->of<event::EvaluationEnded>()) {
    losses.push_back(one.loss);
    for (const NamedNumber& metric : one.metrics) losses.push_back(metric.value);
  }
  return losses;
}

// Where the order of sums is another, as it is with replicas and micro-batches.
inline void expect_close(const Trained& expected, const Trained& found, const std::string& what,
                         double tolerance = 1e-5) {
  const std::vector<double> losses = losses_of(expected);
  const std::vector<double> others = losses_of(found);
  ASSERT_EQ(losses.size(), others.size()) << what;
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(others[i], losses[i], tolerance) << what << ", number " << i;
  const ParameterSet arrays = arrays_in(found.result.last_checkpoint);
  for (const NamedArray& array : arrays_in(expected.result.last_checkpoint)) {
    if (array.type() != DataType::float32) continue;
    ASSERT_NE(arrays.find(array.name()), nullptr) << array.name() << ", " << what;
    const std::span<const float> its = arrays.at(array.name()).values<float>();
    for (std::size_t i = 0; i < its.size(); ++i)
      EXPECT_NEAR(its[i], array.values<float>()[i], tolerance) << array.name() << ", " << what;
  }
}

}  // namespace tutti::testing
