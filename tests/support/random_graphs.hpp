// Graphs drawn at random, as JSON, and cuts of them drawn at random.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>

namespace tutti::testing {

using Json = nlohmann::ordered_json;

struct RandomGraphOptions {
  bool batch_norm = true;
  bool dropout = true;
};

// Of rows of 4 numbers, with 3 outputs of the last node; branches, skips, ties, frozen nodes, a second output.
inline Json random_graph(RandomStream& draws, const RandomGraphOptions& options = {}) {
  struct Value {
    std::string name;
    std::int64_t width = 0;
  };
  std::vector<Value> values{{"point", 4}};
  Json nodes = Json::array();
  std::vector<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>> linears;  // inputs and units
  const auto any = [&]() -> const Value& {
    // Mostly what came last, and now and then something far back.
    const std::uint64_t back =
        draws.below(3) == 0 ? draws.below(values.size()) : draws.below(std::min<std::size_t>(2, values.size()));
    return values[values.size() - 1 - back];
  };
  const auto add = [&](const std::string& op, const std::vector<std::string>& inputs, std::int64_t width,
                       Json more = Json::object()) {
    // Names whose order is not that of the nodes.
    const std::string id = fmt::format("{}{}", static_cast<char>('a' + draws.below(26)), nodes.size());
    Json node{{"id", id}, {"op", op}, {"inputs", inputs}};
    node.update(more);
    nodes.push_back(std::move(node));
    values.push_back({id, width});
  };
  const std::size_t count = 4 + draws.below(10);
  while (nodes.size() < count) {
    const Value from = any();
    switch (draws.below(9)) {
      case 0:
      case 1:
      case 2: {
        const auto units = static_cast<std::int64_t>(2 + draws.below(5));
        Json more{{"units", units}};
        if (draws.below(8) == 0) more["frozen"] = true;
        for (const auto& [name, shape] : linears) {
          if (draws.below(2) == 0 && shape == std::pair(from.width, units) && !more.contains("frozen"))
            more["tied"] = {{"weight", name + ".weight"}};
        }
        const bool is_free = !more.contains("tied") && !more.contains("frozen");
        add("linear", {from.name}, units, more);
        if (is_free) linears.push_back({values.back().name, {from.width, units}});
        break;
      }
      case 3: add("tanh", {from.name}, from.width); break;
      case 4: add("gelu", {from.name}, from.width); break;
      case 5: {
        const Value other = any();
        add("concat", {from.name, other.name}, from.width + other.width);
        break;
      }
      case 6: {
        std::vector<std::string> alike;
        for (const Value& one : values) {
          if (one.width == from.width && draws.below(2) == 0) alike.push_back(one.name);
        }
        if (alike.size() >= 2) add(draws.below(3) == 0 ? "multiply" : "add", alike, from.width);
        break;
      }
      case 7:
        if (options.batch_norm) add("batch_norm", {from.name}, from.width);
        break;
      default:
        if (options.dropout) add("dropout", {from.name}, from.width, {{"p", 0.2}});
    }
  }
  // All of them count for something.
  std::vector<std::string> ends;
  for (const Value& one : values) {
    bool is_used = one.name == "point";
    for (const Json& node : nodes) {
      for (const Json& input : node["inputs"]) is_used = is_used || input == one.name;
    }
    if (!is_used) ends.push_back(one.name);
  }
  std::int64_t width = 0;
  for (const Value& one : values) {
    if (std::ranges::find(ends, one.name) != ends.end()) width += one.width;
  }
  if (ends.size() > 1) add("concat", ends, width);
  add("linear", {values.back().name == "point" ? nodes.back()["id"].get<std::string>() : values.back().name}, 3,
      {{"units", 3}});
  Json outputs = Json::array({values.back().name});
  if (draws.below(3) == 0) outputs.push_back(values[1 + draws.below(values.size() - 2)].name);
  return {{"inputs", {{"point", {4}}}}, {"nodes", nodes}, {"outputs", outputs}};
}

// Each node to a worker, or to none, which is the first.
inline Json random_cut(RandomStream& draws, const Json& graph, int workers, const Json& communication) {
  std::vector<Json> of_worker(static_cast<std::size_t>(workers), Json::array());
  const bool in_pieces = draws.below(2) == 0;  // next to each other, or anywhere
  std::uint64_t at = 0;
  for (std::size_t n = 0; n < graph["nodes"].size(); ++n) {
    at = in_pieces ? n * static_cast<std::uint64_t>(workers) / graph["nodes"].size()
                   : draws.below(static_cast<std::uint64_t>(workers));
    if (at != 0 || draws.below(2) == 0) of_worker[at].push_back(graph["nodes"][n]["id"]);
  }
  Json partitions = Json::array();
  for (std::size_t w = 0; w < of_worker.size(); ++w) {
    if (!of_worker[w].empty())
      partitions.push_back({{"node_ids", of_worker[w]}, {"target", {{"WorkerId", fmt::format("w{}", w)}}}});
  }
  if (partitions.empty())
    partitions.push_back({{"node_ids", {graph["nodes"][0]["id"]}}, {"target", {{"WorkerId", "w0"}}}});
  return {{"type", "ModelParallel"}, {"partitions", partitions}, {"communication", communication}};
}

inline Json list_of_workers(int workers) {
  Json list = Json::array();
  for (int w = 0; w < workers; ++w) list.push_back({{"id", fmt::format("w{}", w)}});
  return list;
}

}  // namespace tutti::testing
