// The parameters of a graph's nodes, as they are read: what they hold at first, whether they are trained, and which of
// them are one.
//
//   ParameterReader reader;
//   node.parameters = reader.add(options, node, is_private);      // for each node, whether anything needs it or not
//   graph.parameters = reader.finish(nodes);                      // of these nodes, which are renumbered
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <tutti/graph/graph.hpp>

namespace tutti {

class ParameterReader {
 public:
  // `is_private`: each replica or client has its own.
  std::vector<std::size_t> add(const Options& options, const GraphNode& node, bool is_private);
  std::vector<GraphParameter> finish(std::vector<GraphNode>& nodes);

 private:
  // What is known of a parameter beside what the graph keeps.
  struct Origin {
    bool is_of_module = false;
    bool is_private = false;
  };
  struct Tie {
    std::size_t parameter = 0;
    std::string to;  // a path
    JsonValue place;
  };

  // The names of those that are tied.
  std::set<std::string> read_ties(const Options& options, const GraphNode& node, std::size_t first);
  void read_initializers(const Options& options, const GraphNode& node, std::size_t first,
                         const std::set<std::string>& tied);
  std::size_t parameter_at(const Tie& tie) const;
  void refuse_unless_one(const Tie& tie, std::size_t other) const;

  std::vector<GraphParameter> parameters_;
  std::vector<Origin> origins_;
  std::map<std::string, std::size_t, std::less<>> by_path_;
  std::vector<Tie> ties_;
};

}  // namespace tutti
