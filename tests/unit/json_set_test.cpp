#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/sample.hpp>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using namespace std::string_literals;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using testing::ScratchFolder;
using ::testing::StartsWith;
using testing::usage_error;
using Json = nlohmann::ordered_json;

constexpr std::string_view kRun = R"({ "seed": 7, // a comment
  "graph": {
    "nodes": [
      {"id": "flat", "op": "flatten"},
      {"id": "body", "nodes": [{"id": "conv1", "filters": 8}, {"id": "conv2", "filters": [1, [2, 3]]}],
       "outputs": ["conv2"]},
      {"id": "logits", "units": 10}],
    "outputs": ["logits", "body"],
    "strategy": {"type": "DataParallel", "num_replicas": 2} },
  "metrics": ["accuracy", {"name": "top", "k": 5}],
  "loss": "cross_entropy",
  "schedule": null })";

JsonDocument run() { return JsonDocument::parse(kRun, "run.json"); }

JsonDocument parsed(std::string_view text) { return JsonDocument::parse(text, "run.json"); }

std::string refusal(std::string_view path, std::string_view text = "5") {
  return usage_error([&] { (void)run().with(path, text); });
}

// What stands in "a" once `text` is set there.
Json value_of(std::string_view text) { return parsed("{}").with("a", text).root().at("a").raw(); }

TEST(JsonSet, ReachesEveryValue) {
  struct Way {
    std::string path;
    std::string pointer;
  };
  const std::vector<Way> ways = {
      {"seed", "/seed"},
      {"new", "/new"},
      {"loss", "/loss"},
      {"graph", "/graph"},
      {"graph.nodes", "/graph/nodes"},
      {"graph.nodes[2]", "/graph/nodes/2"},
      {"graph.nodes[1].nodes[0].filters", "/graph/nodes/1/nodes/0/filters"},
      {"graph.flat", "/graph/nodes/0"},
      {"graph.flat.op", "/graph/nodes/0/op"},
      {"graph.flat.id", "/graph/nodes/0/id"},
      {"graph.logits.units", "/graph/nodes/2/units"},
      {"graph.logits.bias", "/graph/nodes/2/bias"},
      {"graph.logits.init.weight.scale", "/graph/nodes/2/init/weight/scale"},
      {"graph.body", "/graph/nodes/1"},
      {"graph.body.conv1", "/graph/nodes/1/nodes/0"},
      {"graph.body.conv1.filters", "/graph/nodes/1/nodes/0/filters"},
      {"graph.body.conv2.filters[1][0]", "/graph/nodes/1/nodes/1/filters/1/0"},
      {"graph.body.outputs[0]", "/graph/nodes/1/outputs/0"},
      {"graph.body.strategy", "/graph/nodes/1/strategy"},
      {"graph.outputs[1]", "/graph/outputs/1"},
      {"graph.outputs", "/graph/outputs"},
      {"graph.strategy.num_replicas", "/graph/strategy/num_replicas"},
      {"graph.strategy.aggregation.method", "/graph/strategy/aggregation/method"},
      {"metrics[0]", "/metrics/0"},
      {"metrics[1].k", "/metrics/1/k"},
      {"metrics[1].options.deep", "/metrics/1/options/deep"},
      {"train.epochs", "/train/epochs"},
      {"ü.ß", "/ü/ß"},
  };
  for (const Way& way : ways) {
    for (const std::string text : {"5", "-0.25", "true", "null", "\"words\"", "[]", R"({"a": [1, {"b": null}]})"}) {
      Json expected = run().root().raw();
      expected[Json::json_pointer(way.pointer)] = Json::parse(text);
      EXPECT_EQ(run().with(way.path, text).root().raw().dump(), expected.dump()) << way.path;
    }
  }
}

TEST(JsonSet, ReachesElementsOfTheRoot) {
  const JsonDocument document = parsed(R"([1, [2, {"a": 3}]])");
  EXPECT_EQ(document.with("[0]", "x").root().raw().dump(), R"(["x",[2,{"a":3}]])");
  EXPECT_EQ(document.with("[1][1].a", "x").root().raw().dump(), R"([1,[2,{"a":"x"}]])");
}

TEST(JsonSet, TakesAPathAsItIsPrinted) {
  const JsonValue value = run().root().at("graph").at("nodes").element(1).named("body").at("outputs").element(0);
  EXPECT_EQ(value.path(), "graph.body.outputs[0]");
  const JsonValue graph = run().with(value.path(), "conv1").root().at("graph");
  EXPECT_EQ(graph.at("nodes").element(1).at("outputs").element(0).string(), "conv1");
}

TEST(JsonSet, AddsKeysAtTheEnd) {
  const JsonDocument document = run().with("train.epochs", "3").with("seed", "8").with("train.rows", "9");
  EXPECT_THAT(document.root().keys(), ElementsAre("seed", "graph", "metrics", "loss", "schedule", "train"));
  EXPECT_EQ(document.root().at("train").raw().dump(), R"({"epochs":3,"rows":9})");
  EXPECT_EQ(document.root().at("seed").integer(), 8);
}

TEST(JsonSet, AddsObjectsOnTheWay) {
  EXPECT_EQ(parsed("{}").with("a.b.c.d", "1").root().raw().dump(), R"({"a":{"b":{"c":{"d":1}}}})");
}

TEST(JsonSet, TakesAKeyBeforeANodeOfThatName) {
  const JsonDocument document =
      parsed(R"({"nodes": [{"id": "own", "a": 1}, {"id": "nodes", "a": 2}], "own": {"a": 3}})");
  EXPECT_EQ(document.with("own.a", "4").root().raw().dump(),
            R"({"nodes":[{"id":"own","a":1},{"id":"nodes","a":2}],"own":{"a":4}})");
  EXPECT_EQ(document.with("nodes[1].a", "4").root().raw().dump(),
            R"({"nodes":[{"id":"own","a":1},{"id":"nodes","a":4}],"own":{"a":3}})");
}

TEST(JsonSet, TakesOnlyNamedObjectsForNodes) {
  for (const std::string nodes : {"[]", "[1, 2]", "3", R"([{"host": "a"}])", R"([{"id": 5}])", R"({"id": "a"})"}) {
    const JsonDocument document = parsed(fmt::format(R"({{"nodes": {}}})", nodes));
    EXPECT_EQ(document.with("a.b", "1").root().at("a").raw().dump(), R"({"b":1})") << nodes;
  }
}

TEST(JsonSet, AddsAValueBesideNodesAsAKey) {
  const JsonValue graph = run().with("graph.extra", R"({"a": 1})").root().at("graph");
  EXPECT_THAT(graph.keys(), ElementsAre("nodes", "outputs", "strategy", "extra"));
  EXPECT_EQ(usage_error([&] {
              graph.refuse_other_keys({"nodes", "outputs", "strategy"});
            }),
            R"(--set graph.extra={"a": 1}: graph: unknown key "extra"; known are "nodes", "outputs" and "strategy")");
}

TEST(JsonSet, TakesTextForJsonWhereItIs) {
  for (const std::string text :
       {"5", "-1", "2.5e-3", "true", "false", "null", "{}", "[]", R"({"a": [1]})", R"("5")", R"("")", R"("a\nb")"}) {
    EXPECT_EQ(value_of(text), Json::parse(text)) << text;
    EXPECT_EQ(value_of("\n " + text + "\t"), Json::parse(text)) << text;
  }
  EXPECT_EQ(value_of("[1, /* one */ 2] // two"), Json::parse("[1, 2]"));
}

TEST(JsonSet, TakesOtherTextForAString) {
  for (const std::string text :
       {"adam",  "runs/second", "",        " ",    "True", "nul", "1 2", "5x",   "1e999", "NaN",
        "0x10",  "07",          "-",       "a, b", "1,2",  "a=b", "é€😀", "//x",  "7//8",  "/*a*/5",
        "5 //x", "/**/[1]",     "a \"b\"", "}",    ":",    "5;",  "#",   "a\nb", "~/a",   "C:\\x.json"}) {
    EXPECT_EQ(value_of(text), Json(text)) << text;
  }
  EXPECT_EQ(value_of("a\0b"s), Json("a\0b"s));
}

TEST(JsonSet, RefusesWhatBeginsAsJsonAndIsNone) {
  EXPECT_EQ(refusal("train", R"({"epochs" 3})"), R"(--set train={"epochs" 3}: expected a colon, found '3')");
  EXPECT_EQ(refusal("train", R"({"epochs": 3)"),
            R"(--set train={"epochs": 3: expected a comma or '}', found the end of the value)");
  EXPECT_EQ(refusal("train", "{epochs: 3}"),
            "--set train={epochs: 3}: expected a key in double quotes, found 'epochs'");
  EXPECT_EQ(refusal("metrics", "[accuracy]"), "--set metrics=[accuracy]: expected a value, found 'accuracy'");
  EXPECT_EQ(refusal("metrics", " [1] 2"), "--set metrics= [1] 2: expected the end of the value, found '2'");
  EXPECT_EQ(refusal("loss", "\"mse"), "--set loss=\"mse: this string is not closed on its line");
  EXPECT_EQ(refusal("train", R"({"a": 1, "a": 2})"), R"(--set train={"a": 1, "a": 2}: the key "a" is given twice)");
  EXPECT_EQ(refusal("train", "[1e999]"),
            "--set train=[1e999]: expected a number that 64-bit floating point can hold, found '1e999'");
}

TEST(JsonSet, IsNamedInErrorsOfItsValues) {
  const JsonValue root =
      run().with("train.epochs", "x").with("seed", "-1").with("optimizer", R"({"name": "adam", "lr": [1]})").root();
  EXPECT_EQ(usage_error([&] { root.at("train").at("epochs").integer({.min = 1}); }),
            "--set train.epochs=x: train.epochs: expected a whole number of at least 1, found \"x\"");
  EXPECT_EQ(usage_error([&] { root.at("seed").unsigned_integer(); }),
            "--set seed=-1: seed: expected a whole number from 0 to 18446744073709551615, found -1");
  EXPECT_EQ(usage_error([&] { root.at("optimizer").at("lr").number(); }),
            R"(--set optimizer={"name": "adam", "lr": [1]}: optimizer.lr: expected a number, found an array of 1)");
  EXPECT_EQ(usage_error([&] { root.at("optimizer").refuse_other_keys({"name"}); }),
            R"(--set optimizer={"name": "adam", "lr": [1]}: optimizer: unknown key "lr"; known is "name")");
}

TEST(JsonSet, IsNamedInErrorsOfObjectsOnTheWay) {
  const JsonValue root = run().with("train.rate.first", "1").with("train.rate.second", "2").root();
  EXPECT_EQ(usage_error([&] { root.at("train").at("epochs"); }),
            "--set train.rate.first=1: train: missing key \"epochs\"");
  EXPECT_EQ(usage_error([&] { root.at("train").refuse_other_keys({"rates"}); }),
            "--set train.rate.first=1: train: unknown key \"rate\"; did you mean \"rates\"?");
  EXPECT_EQ(usage_error([&] { root.at("train").at("rate").refuse_other_keys({"first"}); }),
            "--set train.rate.second=2: train.rate: unknown key \"second\"; known is \"first\"");
}

TEST(JsonSet, LeavesOtherValuesTheirPlaces) {
  const JsonValue root = run().with("graph.logits.units", "many").with("seed", "8").root();
  const JsonValue logits = root.at("graph").at("nodes").element(2).named("logits");
  EXPECT_EQ(logits.error("here").what(), "run.json:7:7: graph.logits: here"s);
  EXPECT_EQ(logits.at("id").error("here").what(), "run.json:7:14: graph.logits.id: here"s);
  EXPECT_EQ(logits.at("units").error("here").what(), "--set graph.logits.units=many: graph.logits.units: here"s);
  EXPECT_EQ(root.at("loss").error("here").what(), "run.json:11:11: loss: here"s);
  // The key still stands in the file, and only the value does not.
  EXPECT_EQ(usage_error([&] { root.refuse_other_keys({}); }),
            "run.json:1:3: unknown key \"seed\"; no key is known here");
}

TEST(JsonSet, LeavesTheOriginalAsItIs) {
  const JsonDocument document = run();
  const JsonValue seed = document.root().at("seed");
  const JsonDocument changed = document.with("seed", "8").with("graph.logits.units", "11").with("a.b", "c");
  EXPECT_EQ(document.root().raw(), Json::parse(kRun, nullptr, true, /*ignore_comments=*/true));
  EXPECT_EQ(seed.integer(), 7);
  EXPECT_EQ(seed.error("here").what(), "run.json:1:11: seed: here"s);
  EXPECT_EQ(changed.root().at("seed").integer(), 8);
}

TEST(JsonSet, GivesValuesThatOutliveEveryDocument) {
  const JsonValue value = run().with("train", R"({"epochs": 3})").with("seed", "8").root().at("train").at("epochs");
  EXPECT_EQ(value.integer(), 3);
  EXPECT_EQ(value.error("here").what(), R"(--set train={"epochs": 3}: train.epochs: here)"s);
}

TEST(JsonSet, OverridesAnEarlierOne) {
  const JsonValue root = run().with("train.epochs", "3").with("train", "none").with("train", "{}").root();
  EXPECT_EQ(usage_error([&] { root.at("train").at("epochs"); }), "--set train={}: train: missing key \"epochs\"");
}

TEST(JsonSet, RefusesANodeThatIsNotThere) {
  EXPECT_EQ(refusal("graph.logit.units"),
            "--set graph.logit.units=5: graph: there is no key or node \"logit\"; did you mean \"logits\"?");
  EXPECT_EQ(refusal("graph.strateg.type"),
            "--set graph.strateg.type=5: graph: there is no key or node \"strateg\"; did you mean \"strategy\"?");
  EXPECT_EQ(refusal("graph.output[0]"),
            "--set graph.output[0]=5: graph: there is no key or node \"output\"; did you mean \"outputs\"?");
  EXPECT_EQ(refusal("graph.body.conv3.filters"),
            "--set graph.body.conv3.filters=5: graph.body: there is no key or node \"conv3\"; did you mean \"conv1\"?");
  EXPECT_EQ(refusal("graph.conv1.filters"),
            "--set graph.conv1.filters=5: graph: there is no key or node \"conv1\"; to add a key, set all of it: --set "
            "graph.conv1={...}");
  EXPECT_EQ(usage_error([] { (void)parsed(R"({"nodes": [{"id": "a"}]})").with("new.b", "1"); }),
            "--set new.b=1: there is no key or node \"new\"; to add a key, set all of it: --set new={...}");
}

TEST(JsonSet, RefusesToGoIntoWhatHasNoParts) {
  EXPECT_EQ(refusal("loss.name"),
            "--set loss.name=5: loss: expected an object, found \"cross_entropy\" (run.json:11:11)");
  EXPECT_EQ(refusal("schedule.name"),
            "--set schedule.name=5: schedule: expected an object, found null (run.json:12:15)");
  EXPECT_EQ(refusal("seed[0]"), "--set seed[0]=5: seed: expected an array, found 7 (run.json:1:11)");
  EXPECT_EQ(refusal("metrics.name"),
            "--set metrics.name=5: metrics: expected an object, found an array of 2 (run.json:10:14)");
  EXPECT_EQ(refusal("graph.logits[0]"),
            "--set graph.logits[0]=5: graph.logits: expected an array, found an object (run.json:7:7)");
  EXPECT_EQ(refusal("[0]"), "--set [0]=5: expected an array, found an object (run.json:1:1)");
  EXPECT_EQ(usage_error([] { (void)run().with("train", "3").with("train.epochs", "5"); }),
            "--set train.epochs=5: train: expected an object, found 3 (--set train=3)");
}

TEST(JsonSet, RefusesAnElementThatIsNotThere) {
  EXPECT_EQ(refusal("metrics[2]"),
            "--set metrics[2]=5: metrics: expected an array of at least 3, found an array of 2 (run.json:10:14)");
  EXPECT_EQ(refusal("graph.body.conv2.filters[1][4294967295].a"),
            "--set graph.body.conv2.filters[1][4294967295].a=5: graph.body.conv2.filters[1]: expected an array of at "
            "least 4294967296, found an array of 2 (run.json:5:94)");
  EXPECT_EQ(refusal("metric[0]"), "--set metric[0]=5: missing key \"metric\"; is \"metrics\" meant to be it?");
  EXPECT_EQ(refusal("train.list[0].a"), "--set train.list[0].a=5: train: missing key \"list\"");
}

TEST(JsonSet, RefusesWhatIsNoPath) {
  EXPECT_EQ(refusal(""), "--set =5: the path is empty; expected one such as train.epochs");
  for (const std::string path : {".", "a.", ".a", "a..b", "metrics[1]..k", "metrics.[1]", "metrics[1].", "[0]."}) {
    EXPECT_EQ(refusal(path), fmt::format("--set {}=5: the path has an empty part; expected names with dots between "
                                         "them, as in train.epochs",
                                         path));
  }
  for (const std::string index : {"[", "[]", "[x]", "[-1]", "[+1]", "[ 1]", "[0", "[0]x", "[0]]", "[0][", "[0x1]",
                                  "[99999999999999999999]", "[[0]]"}) {
    const std::string message = refusal("metrics" + index + ".k");
    EXPECT_THAT(message, StartsWith(fmt::format("--set metrics{}.k=5: metrics", index)));
    EXPECT_THAT(message, HasSubstr(": expected whole numbers in brackets, as in outputs[0], found \""));
  }
  EXPECT_EQ(refusal("metrics[x].k"),
            "--set metrics[x].k=5: metrics: expected whole numbers in brackets, as in outputs[0], found \"[x]\"");
  EXPECT_EQ(refusal("metrics[0]x"),
            "--set metrics[0]x=5: metrics[0]: expected whole numbers in brackets, as in outputs[0], found \"x\"");
}

TEST(JsonSet, RefusesTextThatIsNoUtf8) {
  EXPECT_EQ(refusal("loss", "a\xff"), "--set loss=a\ufffd: this is no UTF-8 text");
  EXPECT_EQ(refusal("a\xc3", "5"), "--set a\ufffd=5: this is no UTF-8 text");
}

TEST(JsonSet, IsNamedOnOneLineAndInFewWords) {
  EXPECT_EQ(run().with("loss", "a\n\"b\"\t\\").root().at("loss").error("here").what(),
            "--set loss=a \"b\" \\: loss: here"s);
  EXPECT_EQ(refusal("graph.x\ny.z"),
            "--set graph.x y.z=5: graph: there is no key or node \"x\\ny\"; to add a key, set all of it: --set "
            "graph.x\\ny={...}");
  const std::string digits(100, '1');
  EXPECT_EQ(run().with("loss", digits).root().at("loss").error("here").what(),
            "--set loss=" + digits.substr(0, 40) + "...: loss: here");
}

TEST(JsonSet, PlacesErrorsThatHaveNone) {
  const JsonValue root = run().with("loss", "mse").root();
  for (const char* key : {"loss", "seed"}) {
    const std::string placed = root.at(key).placed(UsageError("too many")).what();
    EXPECT_EQ(placed, root.at(key).error("too many").what());
    EXPECT_EQ(root.at("graph").placed(UsageError(placed)).what(), placed);
  }
}

TEST(JsonSet, GoesNoDeeperThanADocumentMay) {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  const auto path = [](int parts) {
    std::string result = "a";
    for (int i = 1; i < parts; ++i) result += ".a";
    return result;
  };
  const auto message = [&](int parts, const std::string& text) {
    return usage_error([&] { (void)parsed(parsed("{}").with(path(parts), text).root().raw().dump()); });
  };
  const std::string why = ": expected at most 512 levels of nesting, found more";
  EXPECT_EQ(message(kMaxJsonDepth, "1"), "(no error)");
  EXPECT_EQ(message(kMaxJsonDepth + 1, "1"), "--set " + path(kMaxJsonDepth + 1) + "=1" + why);
  EXPECT_EQ(message(kMaxJsonDepth - 3, nested(3)), "(no error)");
  EXPECT_EQ(message(kMaxJsonDepth - 2, nested(3)), "--set " + path(kMaxJsonDepth - 2) + "=[[[]]]" + why);
  EXPECT_EQ(message(100'000, "1"), "--set " + path(100'000) + "=1" + why);
  // A graph's nodes are a level that the path does not name.
  const JsonDocument graph = parsed(R"({"nodes": [{"id": "n"}]})");
  EXPECT_EQ(usage_error([&] { (void)graph.with("n.b", nested(kMaxJsonDepth - 3)); }), "(no error)");
  EXPECT_THAT(usage_error([&] { (void)graph.with("n.b", nested(kMaxJsonDepth - 2)); }), EndsWith(why));
}

// A folder with run.json and net.pt, and one to run in.
class JsonFilePaths : public ::testing::Test {
 protected:
  JsonFilePaths() {
    std::filesystem::create_directory(scratch_ / "here");
    std::filesystem::current_path(scratch_ / "here");
    (void)scratch_.write("both.pt", "x");
    (void)scratch_.write("here/both.pt", "x");
    (void)scratch_.write("beside.pt", "x");
    (void)scratch_.write("here/only.pt", "x");
    (void)scratch_.write("run.json", R"({"files": ["both.pt", "beside.pt", "only.pt", "none.pt"], "name": "both.pt"})");
  }
  ~JsonFilePaths() override { std::filesystem::current_path(before_); }

  std::string path(std::string_view name) const { return std::filesystem::canonical(scratch_.path()) / name; }

  const std::filesystem::path before_ = std::filesystem::current_path();
  const ScratchFolder scratch_;
};

TEST_F(JsonFilePaths, OfASetAreFoundFromHereFirst) {
  const JsonDocument document = JsonDocument::read_file(scratch_ / "run.json");
  const auto found = [&](std::string_view text) { return document.with("file", text).root().at("file").file_path(); };
  EXPECT_EQ(found("both.pt"), "both.pt");
  EXPECT_EQ(found("beside.pt"), scratch_ / "beside.pt");
  EXPECT_EQ(found("only.pt"), "only.pt");
  EXPECT_EQ(found("none.pt"), "none.pt");
  EXPECT_EQ(found(path("beside.pt")), path("beside.pt"));
  // Those of the document stay.
  const JsonValue files = document.with("files[1]", "both.pt").root().at("files");
  EXPECT_EQ(files.element(0).file_path(), scratch_ / "both.pt");
  EXPECT_EQ(files.element(1).file_path(), "both.pt");
}

TEST_F(JsonFilePaths, AreWrittenAsTheyWereFound) {
  const JsonDocument document = JsonDocument::read_file("../run.json");
  const JsonDocument changed = document.with("set", R"({"file": "./x/../both.pt"})").with("here", "both.pt");
  EXPECT_EQ(changed.root().raw_with_files(), changed.root().raw()) << "none was read yet";
  for (const JsonValue& file : changed.root().at("files").elements()) (void)file.file_path();
  (void)changed.root().at("set").at("file").file_path();
  (void)changed.root().at("here").file_path();
  (void)changed.root().at("name").string();
  const std::vector<std::string> found = {path("both.pt"), path("beside.pt"), path("here/only.pt"),
                                          path("here/none.pt")};
  Json expected = changed.root().raw();
  EXPECT_EQ(expected["files"][0], "both.pt") << "raw() stays as it was written";
  expected["files"] = found;
  expected["set"]["file"] = path("here/both.pt");
  expected["here"] = path("here/both.pt");
  EXPECT_EQ(changed.root().raw_with_files().dump(), expected.dump());
  EXPECT_EQ(changed.root().at("files").raw_with_files(), Json(found));
  EXPECT_EQ(document.root().raw_with_files(), document.root().raw()) << "each document has its own readers";
  // The copy finds them from anywhere.
  std::filesystem::current_path("/");
  const JsonValue copy = JsonDocument::parse(changed.root().raw_with_files().dump()).root();
  EXPECT_EQ(copy.at("files").element(0).file_path(), path("both.pt"));
  EXPECT_EQ(copy.at("here").file_path(), path("here/both.pt"));
}

TEST(JsonWithout, LeavesOutWhatStandsAtAPath) {
  const JsonDocument document = JsonDocument::parse(kRun, "run.json");
  const Json all = document.root().raw();
  for (const char* path : {"nothing", "nothing.at.all", "graph.nodes[99].op", "graph.missing.units", "seed.deeper"})
    EXPECT_EQ(document.without(path).root().raw(), all) << path;
  Json expected = all;
  expected.erase("seed");
  EXPECT_EQ(document.without("seed").root().raw(), expected);
  const JsonDocument with_more = document.with("optimizer.momentum", "0.9").with("optimizer.lr", "1");
  EXPECT_EQ(with_more.without("optimizer.momentum").root().at("optimizer").keys(),
            document.with("optimizer.lr", "1").root().at("optimizer").keys());
  EXPECT_EQ(document.root().raw(), all);
  EXPECT_THAT(usage_error([&] { (void)document.without(""); }), HasSubstr("the path is empty"));
  EXPECT_THAT(usage_error([&] { (void)document.without("graph.nodes[0]"); }),
              HasSubstr("an element of an array cannot be left out"));
}

TEST_F(JsonFilePaths, AreNotedFromSeveralThreads) {
  const JsonDocument document = JsonDocument::read_file(scratch_ / "run.json");
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&document, i] {
      (void)document.root().at("files").element(i).file_path();
      (void)document.root().raw_with_files();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Json& file : document.root().at("files").raw_with_files())
    EXPECT_TRUE(std::filesystem::path(file.get<std::string>()).is_absolute()) << file;
}

// Documents with graphs in them, and changes to them: each as a path and a text, and made with nlohmann-json.
class RandomChanges {
 public:
  explicit RandomChanges(std::uint64_t seed) : random_({seed}), document_(object(0)) {}

  const Json& document() const { return document_; }

  struct Set {
    std::string path;
    std::string text;
  };

  // Changes the document.
  Set next() {
    Set set;
    Json* value = &document_;
    while (set.path.empty() || random_.below(4) != 0) {
      const std::vector<Json*> nodes = named_nodes(*value);
      if (value->is_object() && (value->empty() || random_.below(4) == 0)) {
        for (std::uint64_t i = nodes.empty() ? random_.below(3) : 0; i > 0; --i)
          value = &go(*value, new_key(), set.path);
        value = &go(*value, new_key(), set.path);
        break;
      }
      if (!value->is_structured() || value->empty()) break;
      const std::size_t index = random_.below(value->size());
      if (value->is_array()) {
        set.path += fmt::format("[{}]", index);
        value = &(*value)[index];
      } else if (!nodes.empty() && random_.below(2) == 0) {
        value = nodes[random_.below(nodes.size())];
        set.path += (set.path.empty() ? "" : ".") + (*value)["id"].get<std::string>();
      } else {
        value = &go(*value, std::next(value->begin(), static_cast<std::ptrdiff_t>(index)).key(), set.path);
      }
    }
    if (random_.below(3) == 0) {
      set.text = word();
      *value = set.text;
    } else {
      *value = any(2);
      set.text = value->dump(random_.below(2) == 0 ? -1 : 2);
    }
    return set;
  }

 private:
  static Json& go(Json& object, const std::string& key, std::string& path) {
    path += (path.empty() ? "" : ".") + key;
    return object[key];
  }

  // The first of each name.
  static std::vector<Json*> named_nodes(Json& value) {
    std::map<std::string, Json*> nodes;
    if (value.is_object() && value.contains("nodes") && value["nodes"].is_array()) {
      for (Json& node : value["nodes"]) {
        if (node.is_object() && node.contains("id") && node["id"].is_string()) nodes.emplace(node["id"], &node);
      }
    }
    std::vector<Json*> result;
    for (const auto& [id, node] : nodes) result.push_back(node);
    return result;
  }

  std::string new_key() { return fmt::format("new{}", random_.below(1000)); }
  std::string word() {
    const std::vector<std::string> words = {"adam", "runs/second", "True", "7//8", "1e999", "ü", "a b"};
    return words[random_.below(words.size())];
  }

  Json any(int depth) {
    switch (random_.below(depth < 4 ? 8 : 4)) {
      case 0: return random_.below(1000);
      case 1: return random_.uniform() - 0.5;
      case 2: return word();
      case 3: return random_.below(2) == 0 ? Json(nullptr) : Json(true);
      case 4:
      case 5: return object(depth);
      default: {
        Json array = Json::array();
        for (std::uint64_t i = random_.below(4); i > 0; --i) array.push_back(any(depth + 1));
        return array;
      }
    }
  }

  Json object(int depth) {
    Json object = Json::object();
    for (std::uint64_t i = random_.below(4); i > 0; --i) object[fmt::format("k{}", i)] = any(depth + 1);
    if (random_.below(2) == 0) return object;
    object["nodes"] = Json::array();
    for (std::uint64_t i = 1 + random_.below(3); i > 0; --i) {
      Json node = depth < 4 ? this->object(depth + 1) : Json::object();
      node["id"] = fmt::format("n{}", i);
      object["nodes"].push_back(node);
    }
    return object;
  }

  RandomStream random_;
  Json document_;
};

void collect_places(const JsonValue& value, std::map<std::string, std::string>& places) {
  const std::string message = value.error("|").what();
  places[value.path()] = message.substr(0, message.rfind(value.path().empty() ? ": |" : ": " + value.path()));
  if (value.is_array()) {
    for (const JsonValue& element : value.elements()) collect_places(element, places);
  } else if (value.is_object()) {
    for (const std::string& key : value.keys()) collect_places(value.at(key), places);
  }
}

TEST(JsonSetProperty, DoesWhatNlohmannDoesToRandomDocuments) {
  std::size_t from_sets = 0;
  for (std::uint64_t seed = 0; seed < 1000; seed += testing::kEveryWhereSanitized) {
    RandomChanges changes(seed);
    JsonDocument document = parsed(changes.document().dump(1));
    for (int i = 0; i < 5; ++i) {
      const Json before = document.root().raw();
      const auto [path, text] = changes.next();
      SCOPED_TRACE(fmt::format("seed {}: --set {}={}\n{}", seed, path, text, before.dump()));
      const JsonDocument changed = document.with(path, text);
      ASSERT_EQ(changed.root().raw().dump(), changes.document().dump());
      ASSERT_EQ(document.root().raw().dump(), before.dump());
      // What does not come from this set stands where it stood.
      std::map<std::string, std::string> places;
      std::map<std::string, std::string> places_before;
      collect_places(changed.root(), places);
      collect_places(document.root(), places_before);
      bool is_named = false;
      for (const auto& [value, place] : places) {
        if (place.starts_with("--set " + path + "=")) {
          is_named = true;
          ++from_sets;
        } else {
          ASSERT_EQ(place, places_before[value]) << value;
        }
      }
      ASSERT_TRUE(is_named);
      document = changed;
    }
  }
  EXPECT_GT(from_sets, 5'000u / testing::kEveryWhereSanitized);
}

TEST(JsonSetProperty, RefusesOrTakesWhateverIsTyped) {
  std::map<bool, int> times;  // refused, taken
  const std::vector<std::string> pieces = {"graph", "body", "conv1", "metrics", "loss", ".",  ".",  ".",  "[0]",
                                           "[1]",   "[",    "]",     "x",       "\xff", "ü",  "{",  "}",  "\"",
                                           ":",     ",",    "5",     "nodes",   "id",   "\n", "//", "\0"s};
  for (std::uint64_t seed = 0; seed < 20'000; seed += testing::kEveryWhereSanitized) {
    RandomStream random({seed});
    const auto typed = [&] {
      std::string result;
      for (std::uint64_t i = random.below(6); i > 0; --i) result += pieces[random.below(pieces.size())];
      return result;
    };
    const std::string path = typed();
    const std::string text = typed();
    const std::string message = usage_error([&] { (void)run().with(path, text).root().raw().dump(); });
    const bool is_taken = message == "(no error)";
    ++times[is_taken];
    if (is_taken) continue;
    ASSERT_THAT(message, AllOf(StartsWith("--set "), Not(HasSubstr("\n")), Not(HasSubstr("json.exception"))))
        << "seed " << seed;
  }
  EXPECT_THAT(times, Each(Pair(_, Gt(1000 / testing::kEveryWhereSanitized))));
  EXPECT_EQ(times.size(), 2u);
}

}  // namespace
}  // namespace tutti
