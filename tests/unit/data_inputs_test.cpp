// Rows without a target, to predict from: files of the kind that a source reads, and .npy files for all.
#include <numeric>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/data/npy.hpp>

#include "support/data_options.hpp"
#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_inputs_test {
namespace {

using ::testing::HasSubstr;
using testing::read_source;
using testing::ReadSource;
using testing::ScratchFolder;

torch::Tensor inputs_of(const ReadSource& data, const std::filesystem::path& file) {
  const std::shared_ptr<const Dataset> rows = open_inputs(data.source, data.options, 0, file);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(rows->size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return rows->rows(numbers).inputs.front();
}

std::string refused(const ReadSource& data, const std::filesystem::path& file) {
  return testing::usage_error([&] { (void)inputs_of(data, file); });
}

template <typename T>
std::filesystem::path write_array(const ScratchFolder& folder, NpyType type, const Shape& shape,
                                  const std::vector<T>& values) {
  std::ostringstream stream;
  write_npy(stream, {.type = type, .shape = shape, .bytes = std::as_bytes(std::span(values))});
  return folder.write("rows.npy", stream.str());
}

TEST(Inputs, OfACsvFileGoByTheNamesOfItsColumns) {
  const ScratchFolder folder;
  folder.write("t.csv", "length,kind,width\n1,rose,2\n3,iris,4\n5,rose,6\n");
  const ReadSource data = read_source(R"({"source": "csv", "file": "t.csv", "label": "kind"})", folder.path());
  const torch::Tensor expected = torch::tensor({{7.f, 8.f}, {9.f, 10.f}});
  EXPECT_TRUE(inputs_of(data, folder.write("a.csv", "width,other,length\n8,x,7\n10,y,9\n")).equal(expected));
  EXPECT_TRUE(inputs_of(data, folder.write("b.csv", "length,kind,width\n7,?,8\n9,,10\n")).equal(expected));
  EXPECT_THAT(refused(data, folder.write("c.csv", "length,widht\n1,2\n")), HasSubstr("c.csv"));
  EXPECT_THAT(refused(data, folder.write("d.csv", "length,width\n1,x\n")),
              HasSubstr("d.csv:2: column 'width': expected a number, found 'x'"));
  EXPECT_THAT(refused(data, folder.write("e.csv", "length,width\n")), HasSubstr("there are no rows"));
}

TEST(Inputs, OfACsvFileWithoutAHeaderGoByTheirPlaceWithOrWithoutTheLabel) {
  const ScratchFolder folder;
  folder.write("t.csv", "1,rose,2\n3,iris,4\n5,rose,6\n");
  const ReadSource data =
      read_source(R"({"source": "csv", "file": "t.csv", "label": 1, "header": false})", folder.path());
  const torch::Tensor expected = torch::tensor({{7.f, 8.f}});
  EXPECT_TRUE(inputs_of(data, folder.write("a.csv", "7,?,8\n")).equal(expected));
  EXPECT_TRUE(inputs_of(data, folder.write("b.csv", "7,8\n")).equal(expected));
  EXPECT_THAT(refused(data, folder.write("c.csv", "7\n")), HasSubstr("expected 3 columns, found 1"));
}

TEST(Inputs, AreStandardisedAsTheRowsToTrainWith) {
  const ScratchFolder folder;
  folder.write("t.csv", "x,y\n1,a\n3,b\n5,a\n7,b\n");
  const ReadSource data = read_source(
      R"({"source": "csv", "file": "t.csv", "label": "y", "standardise": true, "split": {"test": 0}})", folder.path());
  const torch::Tensor found = inputs_of(data, folder.write("a.csv", "x\n4\n"));
  EXPECT_NEAR(found.item<float>(), 0, 1e-6);  // the mean
}

TEST(Inputs, OfNumpyFilesAreForEverySource) {
  const ScratchFolder folder;
  folder.write("t.csv", "x,w,y\n1,2,a\n3,4,b\n");
  const ReadSource data =
      read_source(R"({"source": "csv", "file": "t.csv", "label": "y", "split": {"test": 0}})", folder.path());
  EXPECT_TRUE(inputs_of(data, write_array<double>(folder, NpyType::float64, {1, 2}, {5, 6}))
                  .equal(torch::tensor({{5.f, 6.f}})));
  EXPECT_THAT(refused(data, write_array<double>(folder, NpyType::float64, {1, 3}, {5, 6, 7})),
              HasSubstr("features: expected rows of [2], found [3]"));
  EXPECT_THAT(refused(data, folder.path() / "nothing.npy"), HasSubstr("nothing.npy"));
}

TEST(Inputs, ThatAreImagesMayLackTheirChannel) {
  const ScratchFolder folder;
  const ReadSource data = read_source(R"({"source": "fashion_mnist"})", folder.path());
  const std::vector<std::uint8_t> image(784, 255);
  const torch::Tensor found = inputs_of(data, write_array<std::uint8_t>(folder, NpyType::uint8, {1, 28, 28}, image));
  EXPECT_EQ(found.sizes(), (std::vector<std::int64_t>{1, 1, 28, 28}));
  EXPECT_EQ(found.max().item<float>(), 1);
  EXPECT_EQ(inputs_of(data, "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz").size(0), 10000);
}

TEST(Inputs, OfATextHaveItsCharacters) {
  const ScratchFolder folder;
  folder.write("t.txt", "abcabcabc");
  const ReadSource data =
      read_source(R"({"source": "text", "file": "t.txt", "length": 2, "split": {"test": 0}})", folder.path());
  EXPECT_TRUE(inputs_of(data, folder.write("a.txt", "cbaab")).equal(torch::tensor({{2, 1}, {0, 0}}, torch::kInt64)));
  EXPECT_THAT(refused(data, folder.write("b.txt", "abx")), HasSubstr("the character 'x' is not in the text"));
  EXPECT_THAT(refused(data, folder.write("c.txt", "a")), HasSubstr("expected at least 2 characters, found 1"));
}

}  // namespace
}  // namespace tutti::data_inputs_test
