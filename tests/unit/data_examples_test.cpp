// The data of the examples, and run files on them: read, or refused at a place, whatever is changed in their data.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tutti/data/data_options.hpp>
#include <tutti/train/run.hpp>

#include "support/run_file_mutations.hpp"
#include "support/sample.hpp"

namespace tutti::data_examples_test {
namespace {

using Json = nlohmann::ordered_json;

Json iris() {
  return Json::parse(
      R"({"seed": 7, "data": {"source": "csv", "file": "data/iris.csv", "label": "species", "batch_size": 16,
      "features": ["petal_length", "petal_width"], "split": {"test": 0.2, "validation": 0.1}, "standardise": true},
    "graph": {"inputs": {"features": [2]}, "nodes": [{"id": "logits", "op": "linear", "inputs": ["features"], "units": 3}],
      "outputs": ["logits"]}, "loss": "cross_entropy", "optimizer": {"name": "sgd", "lr": 0.1}})");
}

Json play() {
  return Json::parse(R"({"data": {"source": "text", "file": "data/as_you_like_it.txt", "length": 32, "batch_size": 8},
    "graph": {"inputs": {"text": {"shape": [32], "type": "int64"}}, "nodes": [
        {"id": "letters", "op": "embedding", "inputs": ["text"], "entries": 64, "units": 16},
        {"id": "logits", "op": "linear", "inputs": ["letters"], "units": 64}],
      "outputs": ["logits"]}, "loss": "cross_entropy", "optimizer": {"name": "sgd", "lr": 0.1}})");
}

tutti::Run read(const Json& document) {
  std::filesystem::current_path(TUTTI_EXAMPLES);  // where they find their files
  const std::string text = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  return read_run(JsonDocument::parse(text, "run.json").root());
}

TEST(ExampleData, IrisesHaveThreeKinds) {
  const tutti::Run run = read(iris());
  EXPECT_EQ(run.data.opened_by.description.class_names,
            (std::vector<std::string>{"setosa", "versicolor", "virginica"}));
  const DataSplits data = open_data(run.data.opened_by, run.data.options, run.seed);
  EXPECT_EQ(data.train->size(), 105);
  EXPECT_EQ(data.validation->size(), 15);
  EXPECT_EQ(data.test->size(), 30);
}

TEST(ExampleData, APlayHasRowsOfLetters) {
  const tutti::Run run = read(play());
  EXPECT_EQ(run.data.opened_by.description.classes, 64);
  const DataSplits data = open_data(run.data.opened_by, run.data.options, run.seed);
  EXPECT_EQ(data.train->size() + data.test->size(), (122'575 - 1) / 32);
  // It goes on where the row before ended.
  const DataRows rows = data.test->rows(std::vector<std::int64_t>{0, 1});
  EXPECT_EQ(rows.target[0][31].item<std::int64_t>(), rows.inputs[0][1][0].item<std::int64_t>());
}

TEST(ExampleData, IsReadOrRefusedAtAPlaceWhateverIsChanged) {
  unsigned read_count = 0;
  constexpr unsigned kTimes = 600 / testing::kEveryWhereSanitized;
  for (unsigned seed = 0; seed < kTimes; ++seed) {
    testing::Mutations mutations(seed);
    Json document = seed % 2 == 0 ? iris() : play();
    document["data"] = mutations.of_document(document["data"]);
    SCOPED_TRACE("seed " + std::to_string(seed));
    try {
      (void)read(document);
      ++read_count;
    } catch (const UsageError& error) {
      EXPECT_TRUE(testing::names_a_place(error.what())) << error.what();
    }
  }
  EXPECT_GT(read_count, kTimes / 50);
  EXPECT_LT(read_count, kTimes - kTimes / 10);
}

}  // namespace
}  // namespace tutti::data_examples_test
