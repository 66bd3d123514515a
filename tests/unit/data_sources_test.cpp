// Sources of data, on small files: what they describe, which rows they have, and what they say of bad ones.
#include <zlib.h>

#include <cstdlib>
#include <numeric>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/data/data_folder.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/npy.hpp>

#include "support/data_options.hpp"
#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_sources_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::read_source;
using testing::ReadSource;
using testing::ScratchFolder;
using ::testing::UnorderedElementsAre;

DataRows all_rows(const Dataset& dataset) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(dataset.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return dataset.rows(numbers);
}

std::string refused(const ScratchFolder& folder, const std::string& json) {
  return testing::usage_error([&] { (void)read_source(json, folder.path()).open(); });
}

// --- csv ---

constexpr const char* kWhole = R"(, "split": {"test": 0}})";

ReadSource csv(const ScratchFolder& folder, const std::string& text, const std::string& more) {
  folder.write("t.csv", text);
  return read_source(R"({"source": "csv", "file": "t.csv", )" + more + kWhole, folder.path());
}

TEST(CsvSource, HasNumbersAndAClass) {
  const ScratchFolder folder;
  const ReadSource data = csv(folder, "length,kind,width\n1,rose,2\n3,iris,4\n5,rose,6\n", R"("label": "kind")");
  const DataDescription& description = data.source.description;
  ASSERT_EQ(description.inputs.size(), 1u);
  EXPECT_EQ(description.inputs[0].first, "features");
  EXPECT_EQ(description.inputs[0].second, (ValueSpec{.shape = {2}}));
  EXPECT_EQ(description.target, (ValueSpec{.shape = {}, .type = ValueType::int64}));
  EXPECT_EQ(description.classes, 2);
  EXPECT_THAT(description.class_names, ElementsAre("iris", "rose"));
  const DataRows rows = all_rows(*data.open().train);
  EXPECT_TRUE(rows.inputs[0].equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}})));
  EXPECT_TRUE(rows.target.equal(torch::tensor({1, 0, 1}, torch::kInt64)));
}

TEST(CsvSource, TakesColumnsByNameOrNumber) {
  const ScratchFolder folder;
  const ReadSource named = csv(folder, "a,b,c,d\n1,2,3,x\n", R"("label": 3, "features": ["c", 0])");
  EXPECT_TRUE(all_rows(*named.open().train).inputs[0].equal(torch::tensor({{3.f, 1.f}})));
  const ReadSource bare = csv(folder, "1;2;7.5\n3;4;8\n", R"("label": 2, "header": false, "separator": ";")");
  const DataRows rows = all_rows(*bare.open().train);
  EXPECT_TRUE(rows.inputs[0].equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}})));
  EXPECT_TRUE(rows.target.equal(torch::tensor({{7.5f}, {8.f}})));
  EXPECT_EQ(bare.source.description.target, (ValueSpec{.shape = {1}}));
}

TEST(CsvSource, KnowsClassesFromNumbers) {
  const ScratchFolder folder;
  const auto classes = [&](const std::vector<std::string>& labels, const std::string& more = "") {
    std::string text = "x,y\n";
    for (const std::string& label : labels) text += "0," + label + "\n";
    return csv(folder, text, R"("label": "y")" + more).source.description.class_names;
  };
  EXPECT_THAT(classes({"10", "9", "9.0", "-1"}), ElementsAre("-1", "9", "10"));
  EXPECT_THAT(classes({"1.5", "2"}), ElementsAre());
  EXPECT_THAT(classes({"1", "unknown", "2"}), ElementsAre("1", "2", "unknown"));
  EXPECT_THAT(classes({"1.5", "2.5", "1.5"}, R"(, "target": "class")"), ElementsAre("1.5", "2.5"));
  EXPECT_THAT(classes({"1", "2"}, R"(, "target": "number")"), ElementsAre());
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back(std::to_string(i));
  EXPECT_EQ(classes(many).size(), 20u);
  many.push_back("20");
  EXPECT_EQ(classes(many).size(), 0u);
  EXPECT_EQ(classes(many, R"(, "target": "class")").size(), 21u);
}

TEST(CsvSource, HasAFileToTestWith) {
  const ScratchFolder folder;
  folder.write("train.csv", "x,y\n1,a\n2,b\n");
  folder.write("test.csv", "x,y\n3,b\n");
  const std::string json = R"({"source": "csv", "file": "train.csv", "test_file": "test.csv", "label": "y"})";
  const DataSplits data = read_source(json, folder.path()).open();
  EXPECT_EQ(data.train->size(), 2);
  EXPECT_TRUE(all_rows(*data.test).target.equal(torch::tensor({1}, torch::kInt64)));
  folder.write("test.csv", "x,y\n3,b\n4,c\n");
  EXPECT_THAT(refused(folder, json),
              EndsWith("test.csv:3: column 'y': expected one of the 2 classes to train with, found 'c'"));
  folder.write("test.csv", "y,x\nb,3\n");
  EXPECT_THAT(refused(folder, json), AllOf(HasSubstr("test.csv: expected the columns of "),
                                           EndsWith("train.csv; the first that differs is 'x' there, and 'y' here")));
}

TEST(CsvSource, NamesTheLineOfABadRow) {
  const ScratchFolder folder;
  const auto wrong = [&](const std::string& text, const std::string& more = R"("label": "y")") {
    return testing::usage_error([&] { (void)csv(folder, text, more); });
  };
  EXPECT_THAT(wrong("x,y\n1,a\n2\n"), EndsWith("t.csv:3: expected 2 columns, found 1"));
  EXPECT_THAT(wrong("x,y\n1,a\nz,b\n"), EndsWith("t.csv:3: column 'x': expected a number, found 'z'"));
  EXPECT_THAT(wrong("x,y\n1e39,a\n"),
              EndsWith("t.csv:2: column 'x': expected a number that float32 holds, found '1e39'"));
  EXPECT_THAT(wrong("x,y\n1,a\n2,\n"), EndsWith("t.csv:3: column 'y': expected a label, found nothing"));
  EXPECT_THAT(
      wrong("x,y\n1,1.5\n2,oops\n"),
      EndsWith("t.csv:3: column 'y': expected a number, found 'oops'; \"target\": \"class\" takes labels as text"));
  EXPECT_THAT(wrong("x,y\n1,1\n2,oops\n", R"("label": "y", "target": "number")"),
              EndsWith("t.csv:3: column 'y': expected a number, found 'oops'"));
  EXPECT_THAT(wrong("x,y\n"), EndsWith("t.csv: there are no rows"));
  EXPECT_THAT(wrong(""), EndsWith("t.csv: the file is empty"));
  EXPECT_THAT(wrong("y\na\n"), EndsWith("t.csv: expected a column besides the label"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": "z")"), HasSubstr("run.json:1:45: label: "));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": 2)"), HasSubstr("label: expected a whole number from 0 to 1, found 2"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": true)"), HasSubstr("label: expected a column: its name, or its number"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": "y", "features": ["y"])"),
              HasSubstr("features[0]: the label is no feature"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": "y", "features": [0, 0])"),
              HasSubstr("features[1]: this column is there twice"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": "y", "features": [])"),
              HasSubstr("features: expected at least one column"));
  EXPECT_THAT(wrong("x,y\n1,a\n", R"("label": "y", "separator": "")"), HasSubstr("separator: expected one character"));
  EXPECT_THAT(refused(folder, R"({"source": "csv", "file": "none.csv", "label": 0})"),
              EndsWith("file: there is no file 'none.csv', neither beside the run file nor where this runs"));
}

// --- idx, mnist and fashion_mnist ---

std::string idx(const std::vector<std::uint8_t>& sizes, const std::string& values) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const std::uint8_t size : sizes) text += {'\0', '\0', '\0', static_cast<char>(size)};
  return text + values;
}

std::string packed(const std::string& plain, const ScratchFolder& folder) {
  const std::string path = (folder.path() / "packed").string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, plain.data(), static_cast<unsigned>(plain.size()));
  gzclose(file);
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

constexpr const char* kIdx = R"({"source": "idx", "train_images": "x", "train_labels": "y", )";

TEST(IdxSource, ReadsImagesPlainOrPacked) {
  const ScratchFolder folder;
  const std::string images = idx({2, 2, 3}, std::string("\x00\x33\x66\x99\xcc\xff\xff\xff\xff\xff\xff\xff", 12));
  folder.write("y", idx({2}, "\x02\x01"));
  for (const std::string& bytes : {images, packed(images, folder)}) {
    folder.write("x", bytes);
    const ReadSource data = read_source(std::string(kIdx) + R"("split": {"test": 0}})", folder.path());
    EXPECT_EQ(data.source.description.inputs[0].second, (ValueSpec{.shape = {1, 2, 3}}));
    EXPECT_EQ(data.source.description.classes, 3);
    const DataRows rows = all_rows(*data.open().train);
    EXPECT_TRUE(rows.inputs[0][0].allclose(torch::tensor({{{0.f, 0.2f, 0.4f}, {0.6f, 0.8f, 1.f}}})));
    EXPECT_TRUE(rows.target.equal(torch::tensor({2, 1}, torch::kInt64)));
  }
}

TEST(IdxSource, NamesTheFileAndTheRowOfWhatIsWrong) {
  const ScratchFolder folder;
  const auto wrong = [&](const std::string& images, const std::string& labels, const std::string& more = "") {
    folder.write("x", images);
    folder.write("y", labels);
    return refused(folder, kIdx + more + R"("split": {"test": 0}})");
  };
  const std::string images = idx({2, 1, 1}, "ab");
  const std::string labels = idx({2}, "\x02\x01");
  EXPECT_THAT(wrong(images, labels, R"("classes": 2, )"), EndsWith("/y: row 0: expected a class from 0 to 1, found 2"));
  EXPECT_THAT(wrong(images, idx({3}, "abc")), HasSubstr("/y: expected 2 labels, one for each row of "));
  EXPECT_THAT(wrong(images, idx({2, 1}, "ab")), EndsWith("/y: expected labels, one for each row, found [2, 1]"));
  EXPECT_THAT(wrong(images.substr(0, images.size() - 1), labels), EndsWith("/x ends early, or is damaged"));
  EXPECT_THAT(wrong(images + "c", labels), EndsWith("/x goes on after its [2, 1, 1] values"));
  EXPECT_THAT(wrong("PNG, or so", labels), EndsWith("/x is no IDX file of bytes"));
  EXPECT_THAT(wrong("", labels), EndsWith("/x ends early, or is damaged"));
  EXPECT_THAT(wrong(labels, labels), EndsWith("/x: expected rows of numbers, found [2]"));
  EXPECT_THAT(wrong(idx({0, 1, 1}, ""), idx({0}, ""), R"("classes": 2, )"), EndsWith("/x: there are no rows"));
  folder.write("other", idx({1, 2, 1}, "ab"));
  EXPECT_THAT(wrong(images, labels, R"("test_images": "other", "test_labels": "y", )"),
              HasSubstr("/other: expected rows of [1, 1, 1], as in "));
  EXPECT_THAT(wrong(images, labels, R"("test_images": "other", )"),
              HasSubstr("expected both test_images and test_labels, or none of them"));
  std::string damaged = packed(images, folder);
  damaged[damaged.size() - 6] ^= 1;  // of the check sum
  EXPECT_THAT(wrong(damaged, labels), HasSubstr("/x "));
}

TEST(MnistSource, IsReadFromItsFolderOrSaysHowToGetIt) {
  const ScratchFolder folder;
  const auto open = [&] { return read_source(R"({"source": "mnist", "folder": "."})", folder.path()).open(); };
  try {
    (void)open();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), EndsWith("there is no train-images; run `tutti fetch mnist`"));
  }
  const std::string images = idx({1, 28, 28}, std::string(784, '\x33'));
  folder.write("train-images-idx3-ubyte", images);
  folder.write("train-labels-idx1-ubyte.gz", packed(idx({1}, "\x03"), folder));
  folder.write("t10k-images.idx3-ubyte", images);
  folder.write("t10k-labels-idx1-ubyte", idx({1}, "\x04"));
  const DataSplits data = open();
  EXPECT_EQ(data.train->size(), 1);
  EXPECT_EQ(all_rows(*data.test).target[0].item<std::int64_t>(), 4);
}

TEST(DataFolder, IsThatOfTheEnvironment) {
  const char* before = std::getenv("TUTTI_DATA");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TUTTI_DATA", "/somewhere", 1);
  EXPECT_EQ(data_folder(), "/somewhere");
  unsetenv("TUTTI_DATA");
  const char* home = std::getenv("HOME");
  if (home != nullptr) {
    EXPECT_EQ(data_folder(), std::filesystem::path(home) / ".cache/tutti");
  }
  if (before != nullptr) setenv("TUTTI_DATA", kept.c_str(), 1);
}

TEST(FashionMnistSource, HasSeventyThousandImages) {
  const DataSplits data = read_source(R"({"source": "fashion_mnist"})", ScratchFolder().path()).open();
  EXPECT_EQ(data.train->size(), 60'000);
  EXPECT_EQ(data.test->size(), 10'000);
  const DataRows row = data.train->rows(std::vector<std::int64_t>{0});
  EXPECT_EQ(row.target[0].item<std::int64_t>(), 9);
  EXPECT_EQ(row.inputs[0].sizes(), (std::vector<std::int64_t>{1, 1, 28, 28}));
  EXPECT_EQ(row.inputs[0].max().item<float>(), 1);
}

// --- npy ---

template <typename T>
void write_array(const ScratchFolder& folder, const std::string& name, NpyType type, const Shape& shape,
                 const std::vector<T>& values) {
  std::ostringstream stream;
  write_npy(stream, {.type = type, .shape = shape, .bytes = std::as_bytes(std::span(values))});
  folder.write(name, stream.str());
}

constexpr const char* kNpy = R"({"source": "npy", "inputs": "x.npy", "target": "y.npy", "split": {"test": 0})";

TEST(NpySource, TakesNumbersBytesAndClasses) {
  const ScratchFolder folder;
  write_array<double>(folder, "x.npy", NpyType::float64, {2, 2}, {1, 2, 3, 4});
  write_array<std::int32_t>(folder, "y.npy", NpyType::int32, {2}, {0, 4});
  const ReadSource classes = read_source(std::string(kNpy) + "}", folder.path());
  EXPECT_EQ(classes.source.description.inputs[0].second, (ValueSpec{.shape = {2}}));
  EXPECT_EQ(classes.source.description.target, (ValueSpec{.shape = {}, .type = ValueType::int64}));
  EXPECT_EQ(classes.source.description.classes, 5);
  const DataRows rows = all_rows(*classes.open().train);
  EXPECT_TRUE(rows.inputs[0].equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}})));
  EXPECT_TRUE(rows.target.equal(torch::tensor({0, 4}, torch::kInt64)));

  write_array<std::uint8_t>(folder, "x.npy", NpyType::uint8, {2, 1, 1, 2}, {0, 51, 102, 255});
  write_array<float>(folder, "y.npy", NpyType::float32, {2}, {0.5, 1.5});
  const ReadSource numbers = read_source(std::string(kNpy) + "}", folder.path());
  EXPECT_EQ(numbers.source.description.inputs[0].second, (ValueSpec{.shape = {1, 1, 2}}));
  EXPECT_EQ(numbers.source.description.target, (ValueSpec{.shape = {1}}));
  const DataRows grey = all_rows(*numbers.open().train);
  EXPECT_TRUE(grey.inputs[0].flatten().allclose(torch::tensor({0.f, 0.2f, 0.4f, 1.f})));
  EXPECT_TRUE(grey.target.equal(torch::tensor({{0.5f}, {1.5f}})));

  write_array<std::int64_t>(folder, "x.npy", NpyType::int64, {2, 3}, {0, 1, 2, 3, 4, 5});
  write_array<std::uint8_t>(folder, "y.npy", NpyType::uint8, {2, 3}, {0, 1, 2, 3, 4, 5});
  const ReadSource tokens = read_source(std::string(kNpy) + "}", folder.path());
  EXPECT_EQ(tokens.source.description.inputs[0].second, (ValueSpec{.shape = {3}, .type = ValueType::int64}));
  EXPECT_EQ(tokens.source.description.target, (ValueSpec{.shape = {3}, .type = ValueType::int64}));
  EXPECT_EQ(all_rows(*tokens.open().train).inputs[0].scalar_type(), torch::kInt64);
}

TEST(NpySource, HasArraysToTestWith) {
  const ScratchFolder folder;
  write_array<float>(folder, "x.npy", NpyType::float32, {2, 1}, {1, 2});
  write_array<std::int64_t>(folder, "y.npy", NpyType::int64, {2}, {0, 1});
  write_array<std::int64_t>(folder, "z.npy", NpyType::int64, {2}, {0, 2});
  const std::string json =
      R"({"source": "npy", "inputs": "x.npy", "target": "y.npy", "test_inputs": "x.npy", "test_target": )";
  EXPECT_EQ(read_source(json + "\"y.npy\"}", folder.path()).open().test->size(), 2);
  EXPECT_THAT(refused(folder, json + "\"z.npy\"}"), EndsWith("/z.npy: row 1: expected a class from 0 to 1, found 2"));
  EXPECT_THAT(refused(folder, json + "\"x.npy\"}"), EndsWith("/x.npy: expected rows of [] of int64, found [1]"));
}

TEST(NpySource, NamesTheFileAndTheRowOfWhatIsWrong) {
  const ScratchFolder folder;
  write_array<float>(folder, "x.npy", NpyType::float32, {3, 2}, {1, 2, 3, 4, 5, 6});
  write_array<std::int64_t>(folder, "y.npy", NpyType::int64, {2}, {0, 1});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"), HasSubstr("/y.npy: expected 3 rows, as many as "));
  write_array<std::int64_t>(folder, "y.npy", NpyType::int64, {3}, {0, -1, 1});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"), HasSubstr("/y.npy: row 1: expected a class from 0 to "));
  write_array<std::int64_t>(folder, "y.npy", NpyType::int64, {3}, {0, 0, 1});
  EXPECT_THAT(refused(folder, std::string(kNpy) + R"(, "classes": 1})"),
              EndsWith("/y.npy: row 2: expected a class from 0 to 0, found 1"));
  write_array<float>(folder, "x.npy", NpyType::float32, {3, 2}, {1, 2, 3, NAN, 5, 6});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"),
              EndsWith("/x.npy: row 1: expected numbers that float32 holds, found nan"));
  write_array<double>(folder, "x.npy", NpyType::float64, {3}, {1, 1e300, 3});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"),
              EndsWith("/x.npy: row 1: expected numbers that float32 holds, found inf"));
  write_array<float>(folder, "x.npy", NpyType::float32, {}, {1});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"), EndsWith("/x.npy: expected rows, found one number"));
  write_array<float>(folder, "x.npy", NpyType::float32, {0, 2}, {});
  EXPECT_THAT(refused(folder, std::string(kNpy) + "}"), EndsWith("/x.npy: there are no rows"));
}

// --- text ---

ReadSource text(const ScratchFolder& folder, const std::string& content, const std::string& more) {
  folder.write("t.txt", content);
  return read_source(R"({"source": "text", "file": "t.txt", )" + more + "}", folder.path());
}

TEST(TextSource, HasCharactersAndThoseThatComeNext) {
  const ScratchFolder folder;
  const ReadSource data = text(folder, "abcabcaba", R"("length": 4, "split": {"test": 0})");
  const ValueSpec piece{.shape = {4}, .type = ValueType::int64};
  EXPECT_EQ(data.source.description.inputs[0].second, piece);
  EXPECT_EQ(data.source.description.target, piece);
  EXPECT_EQ(data.source.description.classes, 3);
  EXPECT_THAT(data.source.description.class_names, ElementsAre("a", "b", "c"));
  const DataRows rows = all_rows(*data.open().train);
  EXPECT_TRUE(rows.inputs[0].equal(torch::tensor({{0, 1, 2, 0}, {1, 2, 0, 1}}, torch::kInt64)));
  EXPECT_TRUE(rows.target.equal(torch::tensor({{1, 2, 0, 1}, {2, 0, 1, 0}}, torch::kInt64)));
}

// Every character but the first and those that fill no row is a target once.
TEST(TextSource, CoversTheTextWhateverTheLength) {
  const ScratchFolder folder;
  std::string content;
  for (int i = 0; i < 60; ++i) content += static_cast<char>('A' + i % 50);
  for (const std::int64_t length : {1, 2, 3, 7, 29, 30, 58, 59}) {
    const ReadSource data = text(folder, content, fmt::format(R"("length": {}, "split": {{"test": 0}})", length));
    const DataRows rows = all_rows(*data.open().train);
    EXPECT_EQ(rows.inputs[0].size(0), 59 / length);
    const torch::Tensor inputs = rows.inputs[0].flatten();
    const torch::Tensor targets = rows.target.flatten();
    EXPECT_EQ(inputs.numel(), 59 / length * length);
    for (std::int64_t i = 0; i < inputs.numel(); ++i) {
      const auto name = [&](const torch::Tensor& of) {
        return data.source.description.class_names.at(static_cast<std::size_t>(of[i].item<std::int64_t>()));
      };
      EXPECT_EQ(name(inputs), content.substr(static_cast<std::size_t>(i), 1));
      EXPECT_EQ(name(targets), content.substr(static_cast<std::size_t>(i) + 1, 1));
    }
  }
}

TEST(TextSource, KnowsTheCharactersOfUtf8) {
  const ScratchFolder folder;
  const ReadSource data =
      text(folder, "\xef\xbb\xbfz\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\xb5\na", R"("length": 1, "split": {"test": 0})");
  EXPECT_THAT(data.source.description.class_names,
              ElementsAre("\n", "a", "z", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"));
  for (const char* wrong :
       {"ab\nc\xff", "ab\n\xc3", "a\n\xc0\x80", "\n\xed\xa0\x80", "\n\xf5\x80\x80\x80", "\n\xe0\x80\x80"})
    EXPECT_THAT(testing::usage_error([&] { (void)text(folder, wrong, R"("length": 1)"); }),
                HasSubstr("t.txt:2: expected UTF-8, found the byte 0x"));
}

TEST(TextSource, TestsWithTheEndOfTheText) {
  const ScratchFolder folder;
  const ReadSource data = text(folder, "abcdefghijk", R"("length": 1)");
  const DataSplits splits = data.open();
  EXPECT_TRUE(all_rows(*splits.train).inputs[0].flatten().equal(torch::arange(8)));
  EXPECT_TRUE(all_rows(*splits.test).inputs[0].flatten().equal(torch::tensor({8, 9})));
}

TEST(TextSource, RefusesATextThatIsTooShort) {
  const ScratchFolder folder;
  EXPECT_THAT(testing::usage_error([&] { (void)text(folder, "abc", R"("length": 3)"); }),
              HasSubstr("length: a row has 3 characters, and the one after them; "));
  EXPECT_THAT(testing::usage_error([&] { (void)text(folder, "", R"("length": 3)"); }),
              EndsWith("t.txt: the file is empty"));
}

// --- several files ---

using Numbers = std::vector<std::int64_t>;

TEST(SeveralFiles, AreReadOneAfterTheOther) {
  const ScratchFolder folder;
  folder.write("b.csv", "x,y\n1,lily\n2,rose\n");
  folder.write("a.csv", "x,y\n3,iris\n");
  folder.write("c.txt", "nothing");
  const auto rows_of = [&](const std::string& file) {
    const ReadSource data = read_source(R"({"source": "csv", "label": "y", "file": )" + file + kWhole, folder.path());
    std::vector<std::string> names;
    for (const std::filesystem::path& path : data.source.files) names.push_back(path.filename().string());
    EXPECT_THAT(names, UnorderedElementsAre("a.csv", "b.csv"));
    EXPECT_THAT(data.source.description.class_names, ElementsAre("iris", "lily", "rose"));
    return data.open().train;
  };
  const auto listed = rows_of(R"(["b.csv", "a.csv"])");
  EXPECT_TRUE(all_rows(*listed).inputs[0].equal(torch::tensor({{1.f}, {2.f}, {3.f}})));
  EXPECT_TRUE(all_rows(*listed).target.equal(torch::tensor({1, 2, 0}, torch::kInt64)));
  EXPECT_EQ(listed->file_of_row(), (Numbers{0, 0, 1}));
  const auto found = rows_of(R"("*.csv")");  // in the order of their names
  EXPECT_TRUE(all_rows(*found).inputs[0].equal(torch::tensor({{3.f}, {1.f}, {2.f}})));
  EXPECT_EQ(found->file_of_row(), (Numbers{0, 1, 1}));
  EXPECT_EQ(read_source(R"({"source": "csv", "label": "y", "file": "a.csv")" + std::string(kWhole), folder.path())
                .open()
                .train->file_of_row(),
            Numbers());
}

TEST(SeveralFiles, AreOfArraysImagesAndTexts) {
  const ScratchFolder folder;
  write_array<float>(folder, "x1.npy", NpyType::float32, {1, 2}, {1, 2});
  write_array<float>(folder, "x2.npy", NpyType::float32, {2, 2}, {3, 4, 5, 6});
  write_array<std::int64_t>(folder, "y1.npy", NpyType::int64, {1}, {0});
  write_array<std::int64_t>(folder, "y2.npy", NpyType::int64, {2}, {1, 4});
  const ReadSource arrays =
      read_source(R"({"source": "npy", "inputs": "x*.npy", "target": "y*.npy", "split": {"test": 0}})", folder.path());
  EXPECT_EQ(arrays.source.description.classes, 5);
  EXPECT_TRUE(all_rows(*arrays.open().train).inputs[0].equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}})));
  EXPECT_EQ(arrays.open().train->file_of_row(), (Numbers{0, 1, 1}));

  folder.write("i1", idx({1, 1, 1}, "a"));
  folder.write("i2", idx({2, 1, 1}, "bc"));
  folder.write("l1", idx({1}, std::string(1, '\x03')));
  folder.write("l2", idx({2}, "\x01\x02"));
  const ReadSource images = read_source(
      R"({"source": "idx", "train_images": ["i1", "i2"], "train_labels": ["l1", "l2"], "split": {"test": 0}})",
      folder.path());
  EXPECT_EQ(images.source.description.classes, 4);
  EXPECT_TRUE(all_rows(*images.open().train).target.equal(torch::tensor({3, 1, 2}, torch::kInt64)));
  EXPECT_EQ(images.open().train->file_of_row(), (Numbers{0, 1, 1}));

  folder.write("t1", "bdbdb");
  folder.write("t2", "aca");
  const ReadSource texts =
      read_source(R"({"source": "text", "file": ["t1", "t2"], "length": 2, "split": {"test": 0}})", folder.path());
  EXPECT_THAT(texts.source.description.class_names, ElementsAre("a", "b", "c", "d"));
  EXPECT_TRUE(all_rows(*texts.open().train).inputs[0].equal(torch::tensor({{1, 3}, {1, 3}, {0, 2}}, torch::kInt64)));
  EXPECT_EQ(texts.open().train->file_of_row(), (Numbers{0, 0, 1}));
}

TEST(SeveralFiles, AreSplitEachForItself) {
  const ScratchFolder folder;
  for (const auto& [name, rows] : {std::pair{"a.csv", 10}, std::pair{"b.csv", 1}, std::pair{"c.csv", 5}}) {
    std::string text = "x,y\n";
    for (int row = 0; row < rows; ++row) text += std::to_string(row) + "," + std::to_string(row % 2) + "\n";
    folder.write(name, text);
  }
  const ReadSource data = read_source(
      R"({"source": "csv", "label": "y", "file": "*.csv", "standardise": true, "split": {"test": 0.2, "validation": 0.2}})",
      folder.path());
  const DataSplits splits = data.open(3);
  const auto counts = [](const Dataset& rows) {
    Numbers of_files(3);
    for (const std::int64_t file : rows.file_of_row()) ++of_files[static_cast<std::size_t>(file)];
    return of_files;
  };
  EXPECT_EQ(counts(*splits.train), (Numbers{6, 1, 3}));
  EXPECT_EQ(counts(*splits.test), (Numbers{2, 0, 1}));
  EXPECT_EQ(counts(*splits.validation), (Numbers{2, 0, 1}));
}

TEST(SeveralFiles, ThatDoNotFitAreRefused) {
  const ScratchFolder folder;
  folder.write("a.csv", "x,y\n1,2\n");
  folder.write("b.csv", "x,z\n1,2\n");
  const auto csv_of = [&](const std::string& file) {
    return refused(folder, R"({"source": "csv", "label": "y", "file": )" + file + "}");
  };
  EXPECT_THAT(csv_of(R"(["a.csv", "b.csv"])"),
              AllOf(HasSubstr("b.csv: expected the columns of "),
                    EndsWith("a.csv; the first that differs is 'y' there, and 'z' here")));
  folder.write("more.csv", "x,y,z\n1,2,3\n");
  EXPECT_THAT(csv_of(R"(["a.csv", "more.csv"])"),
              EndsWith("a.csv; the first that differs is missing there, and 'z' here"));
  EXPECT_THAT(csv_of(R"(["more.csv", "a.csv"])"),
              EndsWith("more.csv; the first that differs is 'z' there, and missing here"));
  folder.write("two.txt", "1,2\n");
  folder.write("three.txt", "1,2,3\n");
  EXPECT_THAT(refused(folder, R"({"source": "csv", "header": false, "label": 1, "file": ["two.txt", "three.txt"]})"),
              AllOf(HasSubstr("three.txt: expected the 2 columns of "), EndsWith("two.txt, found 3")));
  EXPECT_THAT(csv_of(R"(["a.csv", "nothing.csv"])"), HasSubstr("there is no file 'nothing.csv'"));
  EXPECT_THAT(csv_of("[]"), HasSubstr("expected at least one file"));
  EXPECT_THAT(csv_of("3"), HasSubstr("expected a file, or a list of them, found 3"));
  EXPECT_THAT(csv_of(R"("*.tsv")"), HasSubstr("that fits '*.tsv'"));
  EXPECT_THAT(csv_of(R"("nowhere/*.csv")"), HasSubstr("that fits '*.csv'"));
  write_array<float>(folder, "x.npy", NpyType::float32, {1, 2}, {1, 2});
  write_array<float>(folder, "wide.npy", NpyType::float32, {1, 3}, {1, 2, 3});
  write_array<std::int64_t>(folder, "y.npy", NpyType::int64, {1}, {0});
  EXPECT_THAT(refused(folder, R"({"source": "npy", "inputs": ["x.npy", "x.npy"], "target": "y.npy"})"),
              HasSubstr("target: expected 2 files, as many as of inputs, found 1"));
  EXPECT_THAT(refused(folder, R"({"source": "npy", "inputs": ["x.npy", "wide.npy"], "target": ["y.npy", "y.npy"]})"),
              HasSubstr("wide.npy: expected rows of"));
}

}  // namespace
}  // namespace tutti::data_sources_test
