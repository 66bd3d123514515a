// Datasets: rows by their numbers, bytes as numbers, parts of them, and inputs brought to mean 0 and deviation 1.
#include <tutti/data/dataset.hpp>

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>
#include <tutti/data/joined.hpp>
#include <tutti/data/standardise.hpp>
#include <tutti/data/subset.hpp>

#include "support/usage_error.hpp"

namespace tutti::data_dataset_test {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers all_of(const Dataset& dataset) {
  Numbers numbers(static_cast<std::size_t>(dataset.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

torch::Tensor inputs_of(const Dataset& dataset) { return dataset.rows(all_of(dataset)).inputs.front(); }

TEST(TensorDataset, SelectsRowsAsTorchDoes) {
  const Numbers numbers{3, 0, 3, 4, 1};
  const torch::Tensor index = torch::tensor(numbers);
  for (const torch::ScalarType type : {torch::kFloat32, torch::kFloat64, torch::kInt64, torch::kBool}) {
    for (const std::vector<std::int64_t>& shape : {Numbers{5}, Numbers{5, 3}, Numbers{5, 2, 3, 4}, Numbers{5, 0}}) {
      const torch::Tensor values = torch::randint(0, 9, shape).to(type);
      const TensorDataset dataset({values, values.transpose(0, -1).contiguous().transpose(0, -1)}, values);
      const DataRows rows = dataset.rows(numbers);
      const torch::Tensor expected = values.index_select(0, index);
      for (const torch::Tensor& found : {rows.inputs[0], rows.inputs[1], rows.target}) {
        EXPECT_EQ(found.scalar_type(), type);
        EXPECT_TRUE(found.equal(expected));
      }
      EXPECT_EQ(dataset.rows({}).target.size(0), 0);
    }
  }
}

TEST(TensorDataset, HandsBytesOutAsNumbersFromZeroToOne) {
  const torch::Tensor bytes = torch::arange(256).to(torch::kUInt8).reshape({4, 1, 8, 8});
  const TensorDataset dataset({bytes}, torch::zeros({4}, torch::kInt64));
  const torch::Tensor found = inputs_of(dataset);
  EXPECT_EQ(found.scalar_type(), torch::kFloat32);
  EXPECT_TRUE(found.equal(bytes.to(torch::kFloat32).div(255)));  // to the last bit
}

TEST(SubsetDataset, HasTheRowsOfItsNumbers) {
  const auto all = std::make_shared<TensorDataset>(std::vector{torch::arange(10)}, torch::arange(10) * 2);
  const SubsetDataset part(all, {7, 2, 9});
  EXPECT_EQ(part.size(), 3);
  const DataRows rows = part.rows(Numbers{2, 0});
  EXPECT_TRUE(rows.inputs.front().equal(torch::tensor({9, 7})));
  EXPECT_TRUE(rows.target.equal(torch::tensor({18, 14})));
  EXPECT_EQ(testing::usage_error([&] { (void)part.rows(Numbers{3}); }), "there is no row 3: there are 3");
  EXPECT_EQ(testing::usage_error([&] { SubsetDataset(all, {10}); }), "there is no row 10: there are 10");
}

TEST(Standardise, BringsFeaturesToMeanZeroAndDeviationOne) {
  torch::manual_seed(3);
  const torch::Tensor features =
      torch::randn({700, 3}) * torch::tensor({0.001, 5.0, 1000.0}) + torch::tensor({5.0, -2.0, 1e5});
  const DataDescription description{.inputs = {{"features", {.shape = {3}}}}, .target = {.shape = {}}};
  const auto plain = std::make_shared<TensorDataset>(std::vector{features.to(torch::kFloat32)}, torch::zeros({700}));
  const std::vector<InputMoments> moments = moments_of(*plain, description);
  const torch::Tensor exact = features.to(torch::kFloat32).to(torch::kFloat64);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_NEAR(moments[0].mean[at], exact.select(1, i).mean().item<double>(), 1e-9 * std::abs(moments[0].mean[at]));
    EXPECT_NEAR(moments[0].deviation[at], exact.select(1, i).std(/*unbiased=*/false).item<double>(),
                1e-9 * moments[0].deviation[at]);
  }
  const torch::Tensor found = inputs_of(StandardisedDataset(plain, description, moments)).to(torch::kFloat64);
  EXPECT_LT(found.mean(0).abs().max().item<double>(), 1e-3);
  EXPECT_LT((found.std(0, false) - 1).abs().max().item<double>(), 1e-3);
}

TEST(Standardise, LeavesWhatIsConstantFinite) {
  const auto constant = std::make_shared<TensorDataset>(std::vector{torch::full({10, 2}, 0.1f)}, torch::zeros({10}));
  const auto other = std::make_shared<TensorDataset>(std::vector{torch::full({1, 2}, 3.1f)}, torch::zeros({1}));
  const DataDescription description{.inputs = {{"features", {.shape = {2}}}}, .target = {.shape = {}}};
  const std::vector<InputMoments> moments = moments_of(*constant, description);
  EXPECT_TRUE(inputs_of(StandardisedDataset(constant, description, moments)).equal(torch::zeros({10, 2})));
  EXPECT_TRUE(inputs_of(StandardisedDataset(other, description, moments)).equal(torch::full({1, 2}, 3.1f - 0.1f)));
}

TEST(Standardise, TakesTheChannelsOfImages) {
  torch::manual_seed(4);
  const torch::Tensor bytes = torch::randint(0, 256, {300, 2, 4, 5}).to(torch::kUInt8);
  const auto plain = std::make_shared<TensorDataset>(std::vector{bytes}, torch::zeros({300}));
  const DataDescription description{.inputs = {{"image", {.shape = {2, 4, 5}}}}, .target = {.shape = {}}};
  const std::vector<InputMoments> moments = moments_of(*plain, description);
  ASSERT_EQ(moments[0].mean.size(), 2u);
  const torch::Tensor grey = bytes.to(torch::kFloat64).div(255);
  const torch::Tensor mean = grey.mean({0, 2, 3}, true);
  const torch::Tensor expected = (grey - mean) / (grey - mean).pow(2).mean({0, 2, 3}, true).sqrt();
  EXPECT_TRUE(
      inputs_of(StandardisedDataset(plain, description, moments)).to(torch::kFloat64).allclose(expected, 1e-5, 1e-5));
}

TEST(Standardise, LeavesTokensAsTheyAre) {
  const auto plain = std::make_shared<TensorDataset>(std::vector{torch::arange(6).reshape({3, 2}), torch::rand({3, 2})},
                                                     torch::zeros({3}));
  const DataDescription description{
      .inputs = {{"text", {.shape = {2}, .type = ValueType::int64}}, {"features", {.shape = {2}}}},
      .target = {.shape = {}}};
  const StandardisedDataset dataset(plain, description, moments_of(*plain, description));
  EXPECT_TRUE(inputs_of(dataset).equal(torch::arange(6).reshape({3, 2})));
}

TEST(JoinedDataset, HasTheRowsOfAllItsPartsInAnyOrder) {
  const auto part = [](std::int64_t first, std::int64_t count) {
    const torch::Tensor numbers = torch::arange(first, first + count);
    return std::make_shared<TensorDataset>(
        std::vector{torch::stack({numbers, -numbers}, 1), (numbers % 256).to(torch::kUInt8).unsqueeze(1)}, 2 * numbers);
  };
  const JoinedDataset all({part(0, 3), part(3, 1), part(4, 0), part(4, 5)});
  EXPECT_EQ(all.size(), 9);
  EXPECT_EQ(all.file_of_row(), (Numbers{0, 0, 0, 1, 3, 3, 3, 3, 3}));
  for (const Numbers& numbers : {Numbers{}, Numbers{1}, Numbers{8, 0, 3, 3, 1, 7}, Numbers{5, 6, 4}, all_of(all)}) {
    const DataRows rows = all.rows(numbers);
    const torch::Tensor expected = torch::tensor(numbers, torch::kInt64);
    EXPECT_TRUE(rows.inputs[0].equal(torch::stack({expected, -expected}, 1)));
    EXPECT_TRUE(rows.inputs[1].equal(expected.unsqueeze(1).to(torch::kFloat32).div(255)));
    EXPECT_TRUE(rows.target.equal(2 * expected));
    EXPECT_EQ(all.packed_rows(numbers).inputs[1].scalar_type(), torch::kUInt8);
  }
  EXPECT_EQ(testing::usage_error([&] { (void)all.rows(Numbers{9}); }), "there is no row 9: there are 9");
  EXPECT_EQ(testing::usage_error([&] { (void)all.rows(Numbers{0, -1}); }), "there is no row -1: there are 9");
  EXPECT_EQ(testing::usage_error([] { JoinedDataset({}); }), "expected at least one dataset to join, found none");
  const SubsetDataset some(std::make_shared<JoinedDataset>(all), {8, 3});
  EXPECT_EQ(some.file_of_row(), (Numbers{3, 1}));
}

}  // namespace
}  // namespace tutti::data_dataset_test
