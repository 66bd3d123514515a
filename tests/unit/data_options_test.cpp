// What can be asked of every source: splits, standardising, augmentation; and what makes no sense for one.
#include <tutti/data/data_options.hpp>

#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/train/run.hpp>

#include "support/data_options.hpp"
#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_options_test {
namespace {

using ::testing::HasSubstr;
using testing::read_source;

constexpr const char* kCsv = R"("source": "csv", "file": "t.csv", "label": "y")";

// Twenty rows: x is their number, and so is y.
std::string table() {
  std::string text = "x,y\n";
  for (int row = 0; row < 20; ++row) text += std::to_string(row) + ',' + std::to_string(row) + ".5\n";
  return text;
}

std::vector<std::int64_t> numbers_up_to(std::int64_t size) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

torch::Tensor inputs_of(const Dataset& dataset) { return dataset.rows(numbers_up_to(dataset.size())).inputs.front(); }

std::set<float> values_of(const Dataset& dataset) {
  const torch::Tensor inputs = inputs_of(dataset);
  return {inputs.data_ptr<float>(), inputs.data_ptr<float>() + inputs.numel()};
}

TEST(DataOptions, SplitWhereTheSourceHasNothingToTestWith) {
  const testing::ScratchFolder folder;
  folder.write("t.csv", table());
  const auto open = [&](const std::string& more, std::uint64_t seed = 7) {
    return read_source(std::string("{") + kCsv + more + "}", folder.path()).open(seed);
  };
  const DataSplits plain = open("");
  EXPECT_EQ(plain.train->size(), 16);
  EXPECT_EQ(plain.test->size(), 4);
  EXPECT_EQ(plain.validation, nullptr);

  const DataSplits three = open(R"(, "split": {"test": 0.25, "validation": 0.1})");
  std::set<float> all;
  for (const auto& part : {three.train, three.test, three.validation}) all.merge(values_of(*part));
  EXPECT_EQ(all.size(), 20u);
  EXPECT_EQ(three.validation->size(), 2);
  EXPECT_EQ(three.test->size(), 5);
  EXPECT_EQ(values_of(*plain.test), values_of(*open("").test));
  EXPECT_NE(values_of(*plain.test), values_of(*open("", 8).test));

  const DataSplits in_order = open(R"(, "split": {"test": 0.1, "shuffle": false})");
  EXPECT_EQ(values_of(*in_order.test), (std::set<float>{18, 19}));
  EXPECT_EQ(open(R"(, "split": {"test": 0})").test, nullptr);
}

TEST(DataOptions, StandardiseByTheTrainingRowsAlone) {
  const testing::ScratchFolder folder;
  folder.write("t.csv", table());
  const DataSplits data =
      read_source(std::string("{") + kCsv + R"(, "standardise": true, "split": {"test": 0.1, "shuffle": false}})",
                  folder.path())
          .open();
  const torch::Tensor train = inputs_of(*data.train);
  EXPECT_NEAR(train.mean().item<double>(), 0, 1e-6);
  EXPECT_NEAR(train.std(false).item<double>(), 1, 1e-6);
  // 18 rows of 0 to 17: a mean of 8.5, a variance of (18 * 18 - 1) / 12.
  EXPECT_NEAR(inputs_of(*data.test)[0].item<double>(), (18 - 8.5) / std::sqrt(323.0 / 12), 1e-5);
}

TEST(DataOptions, RefuseWhatMakesNoSenseAtItsPlace) {
  const testing::ScratchFolder folder;
  folder.write("t.csv", table());
  folder.write("t.txt", "to be or not to be");
  const auto refused = [&](const std::string& json) {
    return testing::usage_error([&] { (void)read_source(json, folder.path()); });
  };
  const auto csv = [&](const std::string& more) { return refused(std::string("{") + kCsv + ", " + more + "}"); };
  EXPECT_THAT(csv(R"("split": 3)"),
              HasSubstr(R"(split: expected a split, as in {"test": 0.2, "validation": 0.1}, found 3)"));
  EXPECT_THAT(csv(R"("split": {"test": 1})"), HasSubstr("split.test: expected a number"));
  EXPECT_THAT(csv(R"("split": {"test": -0.1})"), HasSubstr("split.test: expected a number"));
  EXPECT_THAT(csv(R"("split": {"test": 0.5, "validation": 0.5})"), HasSubstr("split: expected shares that leave rows"));
  EXPECT_THAT(csv(R"("split": {"validation": 0.9})"), HasSubstr("split: expected shares that leave rows"));
  EXPECT_THAT(csv(R"("split": {"tets": 0.1})"), HasSubstr("did you mean \"test\"?"));
  EXPECT_THAT(csv(R"("split": {"test": 0.1}, "test_file": "t.csv")"),
              HasSubstr("split.test: the source has rows to test with of its own"));
  EXPECT_THAT(csv(R"("augment": {"flip": true})"), HasSubstr("augment: the data has no images"));
  EXPECT_THAT(csv(R"("standardise": "yes")"), HasSubstr("standardise: expected"));
  EXPECT_THAT(csv(R"("shufle": true)"), HasSubstr("did you mean \"shuffle\"?"));
  const std::string text = R"({"source": "text", "file": "t.txt", "length": 3, )";
  EXPECT_THAT(refused(text + R"("standardise": true})"), HasSubstr("standardise: the data has no inputs of float32"));
  const std::string images = R"({"source": "fashion_mnist", )";
  EXPECT_THAT(refused(images + R"("augment": {"shift": 28}})"), HasSubstr("augment.shift: expected"));
  EXPECT_THAT(refused(images + R"("augment": {"flop": true}})"), HasSubstr("did you mean \"flip\"?"));
  EXPECT_THAT(refused(images + R"("augment": true})"), HasSubstr("augment: expected an augmentation, as in"));
}

TEST(DataOptions, AreReadFromARunFile) {
  const JsonDocument document = JsonDocument::parse(R"({"data": {"source": "fashion_mnist", "batch_size": 100,
      "split": {"validation": 0.1}, "standardise": true, "augment": {"flip": true, "shift": 2}, "drop_last": true,
      "shuffle": false}, "graph": {"inputs": {"image": [1, 28, 28]}, "nodes": [
      {"id": "flat", "op": "flatten", "inputs": ["image"]}, {"id": "logits", "op": "linear", "inputs": ["flat"], "units": 10}],
      "outputs": ["logits"]}, "loss": "cross_entropy", "optimizer": {"name": "sgd", "lr": 0.1}})");
  const tutti::Run run = read_run(document.root());
  const DataOptions& options = run.data.options;
  EXPECT_EQ(options.split.validation, 0.1);
  EXPECT_EQ(options.split.test, 0);
  EXPECT_TRUE(options.standardise);
  EXPECT_EQ(options.augment, (AugmentOptions{.flip = true, .shift = 2}));
  EXPECT_TRUE(options.drop_last);
  EXPECT_FALSE(options.shuffle);
}

TEST(OpenData, RefusesRowsThatAreNotAsDescribed) {
  const DataDescription description{.inputs = {{"x", {.shape = {2}}}}, .target = {.shape = {1}}};
  const auto refused = [&](std::vector<torch::Tensor> inputs, torch::Tensor target) {
    const DataSource source{.description = description, .open = [&] {
                              return DataSplits{.train = std::make_shared<TensorDataset>(inputs, target)};
                            }};
    return testing::usage_error([&] { (void)open_data(source, {}, 0); });
  };
  EXPECT_EQ(refused({torch::rand({5, 2})}, torch::rand({5, 1})), "(no error)");
  EXPECT_EQ(refused({torch::rand({5, 3})}, torch::rand({5, 1})), "training, x: expected rows of [2], found [3]");
  EXPECT_EQ(refused({torch::rand({5, 2})}, torch::rand({5})), "training, target: expected rows of [1], found []");
  EXPECT_EQ(refused({torch::zeros({5, 2}, torch::kInt64)}, torch::rand({5, 1})),
            "training, x: expected rows of [2], found [2] of int64");
  EXPECT_EQ(refused({torch::rand({5, 2}, torch::kFloat64)}, torch::rand({5, 1})),
            "training, x: expected [2], found a tensor of another type");
  EXPECT_EQ(refused({torch::rand({0, 2})}, torch::rand({0, 1})), "the data has no rows for training");
  EXPECT_EQ(refused({torch::rand({5, 2}), torch::rand({5, 2})}, torch::rand({5, 1})),
            "training: expected 1 inputs, found 2");
  const DataSource nothing{.description = description, .open = [] { return DataSplits{.train = nullptr}; }};
  EXPECT_EQ(testing::usage_error([&] { (void)open_data(nothing, {}, 0); }), "the data has no rows to train with");
}

}  // namespace
}  // namespace tutti::data_options_test
