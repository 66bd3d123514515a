// Run files changed at random: each is read, or refused at a place that is named; nothing else happens.
//
//   try_mutations(5'000);      // of all examples; TUTTI_EXAMPLES is their folder
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/stepper.hpp>

namespace tutti::testing {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline std::vector<std::string> examples() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TUTTI_EXAMPLES)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const std::filesystem::path& path : paths) texts.push_back(text_of(path));
  return texts;
}

class Mutations {
 public:
  explicit Mutations(unsigned seed) : random_(seed) {}

  // Of the text: something cut out, doubled, replaced, or brought from elsewhere in it.
  std::string of_text(std::string text) {
    for (std::size_t times = 1 + below(3); times > 0 && !text.empty(); --times) {
      const std::size_t at = below(text.size());
      const std::size_t length = std::min(text.size() - at, 1 + below(below(4) == 0 ? 60 : 4));
      switch (below(5)) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, text.substr(at, length)); break;
        case 2: text[at] = static_cast<char>(below(256)); break;
        case 3: text.insert(below(text.size()), text.substr(at, length)); break;
        default: text.replace(at, length, token()); break;
      }
    }
    return text;
  }

  // Of the document: values replaced, swapped or taken away, keys renamed.
  nlohmann::ordered_json of_document(nlohmann::ordered_json document) {
    for (std::size_t times = 1 + below(3); times > 0; --times) {
      std::vector<nlohmann::ordered_json*> all;
      collect(document, all);
      nlohmann::ordered_json& at = *all[below(all.size())];
      switch (below(5)) {
        case 0: at = nlohmann::ordered_json::parse(token(), nullptr, false); break;
        case 1: {
          const nlohmann::ordered_json other = *all[below(all.size())];
          at = other;
          break;
        }
        case 2:
          if (at.is_object() && !at.empty())
            at.erase(std::next(at.begin(), static_cast<std::ptrdiff_t>(below(at.size()))));
          break;
        case 3:
          if (at.is_array() && !at.empty()) at.push_back(at[below(at.size())]);
          break;
        default:
          if (at.is_object() && !at.empty()) {
            const auto one = std::next(at.begin(), static_cast<std::ptrdiff_t>(below(at.size())));
            const nlohmann::ordered_json value = one.value();
            at[of_text(one.key() + "x")] = value;
          }
      }
      if (document.is_discarded()) return {};
    }
    return document;
  }

  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  std::string token() {
    static const std::vector<std::string> tokens{"0",
                                                 "1",
                                                 "-1",
                                                 "2",
                                                 "3.5",
                                                 "1e30",
                                                 "-0.0",
                                                 "1e-400",
                                                 "9223372036854775807",
                                                 "18446744073709551616",
                                                 "true",
                                                 "null",
                                                 "\"\"",
                                                 "\"linear\"",
                                                 "\"image\"",
                                                 "\"graph\"",
                                                 "\"Local\"",
                                                 "\"DataParallel\"",
                                                 "[]",
                                                 "{}",
                                                 "[1]",
                                                 "[1, 28, 28]",
                                                 "[-1]",
                                                 "[1000000000, 1000000000]",
                                                 "{\"type\": \"Local\"}",
                                                 "\"same\"",
                                                 "\"adam\"",
                                                 "\"mse\"",
                                                 "\"logits\"",
                                                 "[[[]]]"};
    return tokens[below(tokens.size())];
  }
  static void collect(nlohmann::ordered_json& value, std::vector<nlohmann::ordered_json*>& all) {
    all.push_back(&value);
    if (!value.is_structured()) return;
    for (nlohmann::ordered_json& child : value) collect(child, all);
  }

  std::mt19937 random_;
};

// A line and a column of the file: "run.json:3:51: ...".
inline bool names_a_place(const std::string& message) {
  int line = 0;
  int column = 0;
  return std::sscanf(message.c_str(), "run.json:%d:%d:", &line, &column) == 2 && line > 0 && column > 0;
}

// Strategies of every kind for the graph of the residual example, within each other where they can be.
inline std::vector<std::string> with_other_strategies(const std::string& residual) {
  const auto document = nlohmann::ordered_json::parse(residual, nullptr, true, /*ignore_comments=*/true);
  const char* const strategies[] = {
      R"({"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "Decentralized", "topology": "ring"}})",
      R"({"type": "ModelParallel", "partitions": [{"node_ids": ["stem", "stage1"], "target": {"WorkerId": "w0"}},
          {"node_ids": ["stage2.conv1", "stage2.wide"], "target": {"Tag": "big"}}],
          "communication": {"protocol": "Pipeline", "micro_batch_size": 16, "schedule": "gpipe"}})",
      R"({"type": "Federated", "num_clients": 10, "rounds": 3, "aggregation": {"method": "FedYogi", "beta1": 0.9,
          "beta2": 0.99, "tau": 0.001}, "client_selection": {"method": "ByCapability", "required_tags": ["a"]},
          "inner": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}})",
      R"({"type": "PopulationBased", "population_size": 4, "generations": 2, "exploit": {"method": "Binary",
          "threshold": 0.5}, "explore": {"method": "Perturbation", "factor": 0.2}})",
      R"({"type": "Custom", "coordinator": "gossip", "config": {"peers": [1, 2, {"deep": null}]}})"};
  std::vector<std::string> texts;
  for (const char* strategy : strategies) {
    nlohmann::ordered_json with = document;
    with["graph"]["strategy"] = nlohmann::ordered_json::parse(strategy);
    const std::string type = with["graph"]["strategy"]["type"];
    if (type == "ModelParallel")
      with["graph"]["nodes"][1]["strategy"] = nlohmann::ordered_json::parse(
          R"({"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "ParameterServer"}})");
    if (type == "DataParallel" || type == "Federated") with["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
    if (type == "Federated") {
      with["train"] = nlohmann::ordered_json::object();
      with["data"]["client_split"] = {{"method", "Dirichlet"}, {"alpha", 0.5}};
      with["data"]["client_test"] = 0.1;
      with["clients"] = nlohmann::ordered_json::parse(
          R"([{"count": 4, "tags": ["a"], "speed": {"method": "Uniform", "min": 1, "max": 9}, "epochs": 2}, {"dropout": 0.1}])");
    }
    if (type == "PopulationBased") {
      with["train"] = nlohmann::ordered_json::object();
      with["data"]["split"] = {{"validation", 0.1}};
      with["optimizer"] = {{"name", "sgd"}, {"lr", 0.1}};
      with["search"] = nlohmann::ordered_json::parse(
          R"({"optimizer.name": {"categorical": ["sgd", "adam"]}, "optimizer.lr": {"float": [0.001, 1], "scale": "log"},
              "optimizer.momentum": {"conditional": {"float": [0, 0.9]}, "when": {"optimizer.name": "sgd"}}})");
    }
    texts.push_back(with.dump(1));
  }
  nlohmann::ordered_json phased = document;
  phased["train"] = nlohmann::ordered_json::object();
  phased["phases"] = nlohmann::ordered_json::parse(
      R"([{"epochs": 1, "after": 2, "of": 9, "seed": 3, "set": {"data.batch_size": 16}}, {"steps": 5, "new_optimizer": true}])");
  phased["graph"].erase("strategy");
  texts.push_back(phased.dump(1));
  return texts;
}

// A folder to run in, until the scope ends.
class InFolder {
 public:
  explicit InFolder(const std::filesystem::path& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

// What was read can be counted, and written and read again.
inline void use(const Run& run, const Registry& registry) {
  EXPECT_FALSE(run.graph.outputs().empty());
  EXPECT_GE(footprint_of(run).total(), 0);
  const std::string text = nlohmann::ordered_json{{"graph", run.graph.to_json()}}.dump();
  const Graph again = Graph::from_json(JsonDocument::parse(text).root().at("graph"), registry.operators);
  EXPECT_EQ(again.nodes().size(), run.graph.nodes().size());
}

inline void try_mutations(unsigned count) {
  const InFolder in_examples(TUTTI_EXAMPLES);  // where they find their files
  std::vector<std::string> texts = examples();
  ASSERT_FALSE(texts.empty());
  for (std::string& text : with_other_strategies(text_of("fashion_mnist_residual.json")))
    texts.push_back(std::move(text));
  Registry registry;
  registry.coordinators.add({.name = "gossip", .resolve = [](const Options& config, const Run&) {
                               for (const JsonValue& peer : config.at("peers").elements()) (void)peer.is_object();
                               return Coordinator{.make = [](const CoordinatorContext&) { return nullptr; }};
                             }});
  std::vector<nlohmann::ordered_json> documents;
  for (const std::string& text : texts) {
    EXPECT_NO_THROW((void)read_run(JsonDocument::parse(text, "run.json").root(), registry));
    documents.push_back(nlohmann::ordered_json::parse(text, nullptr, true, /*ignore_comments=*/true));
  }
  unsigned read = 0;
  for (unsigned seed = 0; seed < count; ++seed) {
    Mutations mutations(seed);
    const std::size_t which = mutations.below(texts.size());
    const std::string text = mutations.below(3) == 0
                                 ? mutations.of_text(texts[which])
                                 : mutations.of_document(documents[which])
                                       .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    SCOPED_TRACE("seed " + std::to_string(seed));
    try {
      const Run run = read_run(JsonDocument::parse(text, "run.json").root(), registry);
      use(run, registry);
      ++read;
    } catch (const UsageError& error) {
      EXPECT_TRUE(names_a_place(error.what())) << error.what();
    }
  }
  EXPECT_GT(read, count / 50);
  EXPECT_LT(read, count - count / 10);
}

}  // namespace tutti::testing
