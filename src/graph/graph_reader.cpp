#include "graph_reader.hpp"

#include <algorithm>
#include <cctype>
#include <exception>
#include <new>
#include <queue>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/nearest_name.hpp>
#include <tutti/nn/random_draws.hpp>

#include "cause.hpp"
#include "parameter_reader.hpp"

namespace tutti {
namespace {

const std::vector<std::string> kGraphKeys{"inputs", "nodes", "outputs", "strategy"};
const std::vector<std::string> kSubgraphKeys{"id", "op"};  // beside those of a graph
const std::vector<std::string> kNodeKeys{"id", "op", "inputs", "frozen", "lr_factor", "init", "tied"};

std::string joined(const std::string& path, std::string_view last) {
  return path.empty() ? std::string(last) : fmt::format("{}.{}", path, last);
}

std::string meaning(std::string_view name, const std::vector<std::string>& known) {
  const std::optional<std::string> nearest = nearest_name(name, known);
  return nearest ? fmt::format("; did you mean '{}'?", *nearest) : "";
}

// Names stand between dots in paths, beside the keys of a graph.
void refuse_unless_name(const JsonValue& place, const std::string& name) {
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '-';
  });
  if (!is_name) throw place.expected("a name of letters, digits, _ and -");
  for (const auto& keys : {kGraphKeys, kSubgraphKeys}) {
    if (std::ranges::find(keys, name) != keys.end())
      throw place.error(fmt::format("'{}' is a key of a graph, and no name for something in it", name));
  }
}

Shape read_shape(const JsonValue& value) {
  Shape shape;
  for (const JsonValue& size : value.elements()) shape.push_back(size.integer({.min = 1, .max = kMostSize}));
  if (!element_count(shape)) throw value.error(fmt::format("a row of the shape {} fits no machine", to_string(shape)));
  return shape;
}

ValueSpec read_spec(const JsonValue& value) {
  if (value.is_array()) return {.shape = read_shape(value)};
  if (!value.is_object())
    throw value.expected(R"(the shape of a row, as in [1, 28, 28], or {"shape": [64], "type": "int64"})");
  value.refuse_other_keys({"shape", "type"});
  const std::optional<JsonValue> type = value.find("type");
  return {.shape = read_shape(value.at("shape")),
          .type = type && type->one_of({"float32", "int64"}) == "int64" ? ValueType::int64 : ValueType::float32};
}

void refuse_too_large(const Options& options, const Operator& its) {
  const auto is_too_large = [](const Shape& shape) {
    return !element_count(shape) || std::ranges::any_of(shape, [](std::int64_t size) { return size > kMostSize * 8; });
  };
  if (is_too_large(its.output.shape) ||
      std::ranges::any_of(its.output.shape, [](std::int64_t size) { return size > kMostSize; }))
    throw options.error(fmt::format("an output of the shape {} fits no machine", to_string(its.output.shape)));
  for (const ParameterSpec& parameter : its.parameters) {
    if (is_too_large(parameter.shape)) {
      throw options.error(
          fmt::format("its {} of the shape {} fits no machine", parameter.name, to_string(parameter.shape)));
    }
  }
}

// Of an operator that a user wrote: what the module will be made of.
void refuse_unless_whole(const Options& options, const Operator& its, const std::string& op) {
  if (!its.compute) throw options.error(fmt::format("the operator '{}' does not say how to compute", op));
  std::set<std::string> names;
  const auto refuse_unless_new = [&](const std::string& name) {
    const bool is_name = !name.empty() && name.front() != '.' && name.back() != '.' &&
                         name.find("..") == std::string::npos && names.insert(name).second;
    if (!is_name)
      throw options.error(
          fmt::format("the operator '{}' has a parameter or buffer '{}' that is no name, or two of it", op, name));
  };
  for (const ParameterSpec& parameter : its.parameters) {
    refuse_unless_new(parameter.name);
    if (!parameter.initial && !its.make_module)
      throw options.error(
          fmt::format("the operator '{}' does not say what its parameter '{}' holds at first", op, parameter.name));
  }
  for (const BufferSpec& buffer : its.buffers) refuse_unless_new(buffer.name);
}

std::string inputs_wanted(const OperatorType& type) {
  const auto inputs = [](std::size_t count) { return fmt::format("{} input{}", count, count == 1 ? "" : "s"); };
  if (type.least_inputs == type.most_inputs) return inputs(type.least_inputs);
  if (type.most_inputs == kAnyNumber) return "at least " + inputs(type.least_inputs);
  return fmt::format("{} to {}", type.least_inputs, inputs(type.most_inputs));
}

}  // namespace

Graph GraphReader::read(const JsonValue& value) {
  if (!value.is_object()) throw value.expected("a graph: an object with inputs, nodes and outputs");
  value.refuse_other_keys(kGraphKeys);
  root_ = std::make_unique<DocumentGraph>();
  graph_.subgraphs_.push_back({});
  graph_.places_.emplace("", 0);
  read_inputs(value.at("inputs"));
  read_body(value, *root_);
  find_sources();
  order_nodes();
  resolve_nodes();
  if (const std::optional<JsonValue> strategy = value.find("strategy")) check_partitions(*strategy);
  graph_.document_ = std::make_shared<const nlohmann::ordered_json>(value.raw());
  return std::move(graph_);
}

// --- the document ---

void GraphReader::read_inputs(const JsonValue& value) {
  for (const std::string& name : value.keys()) {
    const JsonValue spec = value.at(name);
    refuse_unless_name(spec, name);
    graph_.inputs_.push_back({name, read_spec(spec)});
  }
  if (graph_.inputs_.empty()) throw value.error("a graph has at least one input");
}

void GraphReader::read_body(const JsonValue& value, DocumentGraph& graph) {
  if (const std::optional<JsonValue> strategy = value.find("strategy")) read_strategy(*strategy, graph.number);
  for (const JsonValue& node : value.at("nodes").elements()) read_node(node, graph);
  const JsonValue outputs = value.at("outputs");
  for (const JsonValue& output : outputs.elements()) {
    const std::string& name = output.string();
    if (std::ranges::find(graph.outputs, name, &Reference::name) != graph.outputs.end())
      throw output.error(fmt::format("the output '{}' is there twice", name));
    graph.outputs.push_back({name, output});
  }
  if (graph.outputs.empty()) throw outputs.error("a graph has at least one output");
}

void GraphReader::read_strategy(const JsonValue& value, std::size_t subgraph) {
  TrainingStrategy strategy = training_strategy_from_json(value);
  try {
    graph_.refuse_inside_each_other(subgraph, strategy);
  } catch (const UsageError& error) {
    throw value.error(error.what());
  }
  graph_.subgraphs_[subgraph].strategy = std::move(strategy);
}

bool GraphReader::is_input(const DocumentGraph& graph, const std::string& name) const {
  return graph.around == nullptr ? std::ranges::find(graph_.inputs_, name, &GraphInput::name) != graph_.inputs_.end()
                                 : graph.inputs.contains(name);
}

void GraphReader::read_node(const JsonValue& value, DocumentGraph& graph) {
  if (!value.is_object()) throw value.expected("a node: an object with id, op and inputs");
  const JsonValue id = value.at("id");
  refuse_unless_name(id, id.string());
  if (is_input(graph, id.string())) throw id.error(fmt::format("an input has the name '{}' already", id.string()));
  if (graph.by_id.contains(id.string())) throw id.error(fmt::format("there is a node '{}' already", id.string()));

  auto node = std::make_unique<DocumentNode>(
      DocumentNode{.id = id.string(), .path = joined(graph.path, id.string()), .json = value.named(id.string())});
  node->within = &graph;
  const JsonValue op = node->json.at("op");
  node->op = op.string();
  if (node->op != "graph") (void)operators_.at(op);
  const JsonValue inputs = node->json.at("inputs");
  if (node->op == "graph" && inputs.is_object()) {
    for (const std::string& name : inputs.keys()) node->inputs.push_back({inputs.at(name).string(), inputs.at(name)});
  } else {
    for (const JsonValue& input : inputs.elements()) node->inputs.push_back({input.string(), input});
  }
  if (node->op == "graph") {
    read_subgraph(node->json, *node);
  } else {
    node->number = all_.size();
    all_.push_back(node.get());
    graph_.places_.emplace(node->path, graph.number);
  }
  graph.by_id.emplace(node->id, node.get());
  graph.nodes.push_back(std::move(node));
}

// Inside, inputs have the names of the values that they are, or those that an object gives them.
void GraphReader::read_subgraph(const JsonValue& value, DocumentNode& node) {
  std::vector<std::string> known = kGraphKeys;
  known.insert(known.end(), kSubgraphKeys.begin(), kSubgraphKeys.end());
  value.refuse_other_keys(known);
  node.body = std::make_unique<DocumentGraph>();
  node.body->path = node.path;
  node.body->around = node.within;
  node.body->number = graph_.subgraphs_.size();
  graph_.subgraphs_.push_back({.path = node.path, .parent = node.within->number});
  graph_.places_.emplace(node.path, node.body->number);
  const JsonValue inputs = value.at("inputs");
  const std::vector<std::string> names = inputs.is_object() ? inputs.keys() : std::vector<std::string>();
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const std::string name = inputs.is_object() ? names[i] : node.inputs[i].name;
    const JsonValue& place = node.inputs[i].place;
    if (inputs.is_object()) refuse_unless_name(place, name);
    if (!node.body->inputs.emplace(name, node.inputs[i]).second)
      throw place.error(fmt::format("the input '{}' is there twice", name));
  }
  if (node.inputs.empty()) throw inputs.error("a graph has at least one input");
  read_body(value, *node.body);
}

// --- names become values ---

std::vector<std::string> GraphReader::names_in(const DocumentGraph& graph) const {
  std::vector<std::string> names;
  if (graph.around == nullptr) {
    for (const GraphInput& input : graph_.inputs_) names.push_back(input.name);
  }
  for (const auto& [name, reference] : graph.inputs) names.push_back(name);
  for (const auto& node : graph.nodes) names.push_back(node->id);
  return names;
}

GraphReader::Source GraphReader::find(const DocumentGraph& graph, const Reference& reference) {
  constexpr std::size_t kMostInARow = 10'000;
  if (on_the_way_.size() >= kMostInARow) throw reference.place.error("too many subgraphs hand this value on");
  const auto key = std::make_pair(&graph, reference.name);
  if (const auto known = found_.find(key); known != found_.end()) return known->second;
  if (!on_the_way_.insert(key).second)
    throw reference.place.error(fmt::format("'{}' is what it is made of: a cycle", reference.name));
  const auto result = [&]() -> Source {
    if (graph.around == nullptr) {
      const auto input = std::ranges::find(graph_.inputs_, reference.name, &GraphInput::name);
      if (input != graph_.inputs_.end()) return static_cast<std::size_t>(input - graph_.inputs_.begin());
    } else if (const auto input = graph.inputs.find(reference.name); input != graph.inputs.end()) {
      return find(*graph.around, input->second);
    }
    const std::size_t dot = std::min(reference.name.find('.'), reference.name.size());
    const std::string id = reference.name.substr(0, dot);
    const std::string rest = dot == reference.name.size() ? "" : reference.name.substr(dot + 1);
    const auto node = graph.by_id.find(id);
    if (node == graph.by_id.end()) {
      if (!rest.empty() && is_input(graph, id))
        throw reference.place.error(fmt::format("the input '{}' is one value: expected '{}'", id, id));
      throw reference.place.error(fmt::format("there is no node or input '{}'{}", id, meaning(id, names_in(graph))));
    }
    if (!node->second->body) {
      if (dot != reference.name.size())
        throw reference.place.error(fmt::format("the node '{}' has one output: expected '{}'", id, id));
      return node->second;
    }
    const DocumentGraph& body = *node->second->body;
    if (dot == reference.name.size()) {
      if (body.outputs.size() == 1) return find(body, body.outputs.front());
      std::vector<std::string> outputs;
      for (const Reference& output : body.outputs) outputs.push_back(fmt::format("'{}.{}'", id, output.name));
      throw reference.place.error(
          fmt::format("the graph '{}' has several outputs: expected one of {}", id, fmt::join(outputs, ", ")));
    }
    const auto output = std::ranges::find(body.outputs, rest, &Reference::name);
    if (output == body.outputs.end()) {
      std::vector<std::string> outputs;
      for (const Reference& one : body.outputs) outputs.push_back(one.name);
      throw reference.place.error(fmt::format("the graph '{}' has no output '{}'{}", id, rest, meaning(rest, outputs)));
    }
    return find(body, *output);
  }();
  on_the_way_.erase(key);
  found_.emplace(key, result);
  return result;
}

void GraphReader::find_sources() {
  for (const DocumentNode* node : all_) {
    std::vector<Source>& sources = sources_.emplace_back();
    for (const Reference& input : node->inputs) sources.push_back(find(*node->within, input));
  }
  // Of subgraphs that nobody uses, too.
  const std::function<void(const DocumentGraph&)> check = [&](const DocumentGraph& graph) {
    for (const Reference& output : graph.outputs) (void)find(graph, output);
    for (const auto& node : graph.nodes) {
      if (!node->body) continue;
      for (const Reference& input : node->inputs) (void)find(graph, input);
      check(*node->body);
    }
  };
  check(*root_);
  for (const Reference& output : root_->outputs) output_sources_.push_back(find(*root_, output));
}

// --- an order to compute them in ---

void GraphReader::order_nodes() {
  const std::size_t count = all_.size();
  std::vector<std::size_t> missing(count);
  std::vector<std::vector<std::size_t>> users(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const Source& source : sources_[i]) {
      if (const auto* const* node = std::get_if<const DocumentNode*>(&source)) {
        ++missing[i];
        users[(*node)->number].push_back(i);
      }
    }
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;  // the first in the document first
  for (std::size_t i = 0; i < count; ++i) {
    if (missing[i] == 0) ready.push(i);
  }
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t next = ready.top();
    ready.pop();
    order.push_back(next);
    for (const std::size_t user : users[next]) {
      if (--missing[user] == 0) ready.push(user);
    }
  }
  if (order.size() != count) {
    // Everything that is missing something has, somewhere before it, a cycle.
    std::size_t at = static_cast<std::size_t>(std::ranges::find_if(missing, [](std::size_t one) { return one > 0; }) -
                                              missing.begin());
    std::vector<std::size_t> way;
    while (std::ranges::find(way, at) == way.end()) {
      way.push_back(at);
      for (const Source& source : sources_[at]) {
        const auto* const* node = std::get_if<const DocumentNode*>(&source);
        if (node != nullptr && missing[(*node)->number] > 0) {
          at = (*node)->number;
          break;
        }
      }
    }
    std::vector<std::string> names{all_[at]->path};
    for (auto one = way.rbegin(); one != way.rend(); ++one) {
      names.push_back(all_[*one]->path);
      if (*one == at) break;
    }
    throw all_[at]->json.error(fmt::format("nodes go round in a cycle: {}", fmt::join(names, " -> ")));
  }

  is_needed_.assign(count, false);
  std::vector<bool> is_input_used(graph_.inputs_.size());
  std::vector<Source> left = output_sources_;
  while (!left.empty()) {
    const Source source = left.back();
    left.pop_back();
    if (const std::size_t* input = std::get_if<std::size_t>(&source)) {
      is_input_used[*input] = true;
      continue;
    }
    const std::size_t number = std::get<const DocumentNode*>(source)->number;
    if (is_needed_[number]) continue;
    is_needed_[number] = true;
    left.insert(left.end(), sources_[number].begin(), sources_[number].end());
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_needed_[i])
      graph_.warnings_.push_back(fmt::format("the node '{}' is not computed: no output needs it", all_[i]->path));
  }
  for (std::size_t i = 0; i < graph_.inputs_.size(); ++i) {
    if (!is_input_used[i])
      graph_.warnings_.push_back(fmt::format("no output needs the input '{}'", graph_.inputs_[i].name));
  }
  for (const std::size_t i : order) order_.push_back(all_[i]);
}

void GraphReader::check_partitions(const JsonValue& strategy) const {
  const auto* parallel = std::get_if<strategy::ModelParallel>(&*graph_.subgraphs_.front().strategy);
  if (parallel == nullptr) return;
  if (const std::optional<Graph::PartitionFault> fault = graph_.find_fault(*parallel)) {
    throw strategy.at("partitions").element(fault->partition).at("node_ids").element(fault->node).error(fault->what);
  }
}

// --- shapes and parameters ---

Operator GraphReader::resolve(const DocumentNode& node, const Options& options, std::span<const ValueSpec> inputs) {
  const OperatorType& type = *operators_.find(node.op);
  if (inputs.size() < type.least_inputs || inputs.size() > type.most_inputs) {
    throw node.json.at("inputs").error(
        fmt::format("{} takes {}, found {}", node.op, inputs_wanted(type), inputs.size()));
  }
  Operator resolved;
  try {
    const RandomDraws apart({.place = node.number});  // what a user's module draws is nobody else's
    resolved = type.resolve(options, inputs);
  } catch (const UsageError& error) {
    throw node.json.placed(error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // of a user's operator
    throw node.json.error(detail::cause_of(error));
  }
  refuse_unless_whole(options, resolved, node.op);
  refuse_too_large(options, resolved);
  return resolved;
}

// Nodes that nothing needs are checked as the others are, and then left out.
void GraphReader::resolve_nodes() {
  std::vector<ValueSpec> spec_of(all_.size());
  std::vector<std::size_t> value_of(all_.size());
  const auto node_of = [](const Source& source) {
    const auto* const* node = std::get_if<const DocumentNode*>(&source);
    return node == nullptr ? nullptr : *node;
  };
  const auto value_at = [&](const Source& source) {
    const DocumentNode* node = node_of(source);
    return node == nullptr ? std::get<std::size_t>(source) : value_of[node->number];
  };
  ParameterReader parameters;
  for (const DocumentNode* node : order_) {
    std::vector<ValueSpec> inputs;
    for (const Source& source : sources_[node->number]) {
      const DocumentNode* its = node_of(source);
      inputs.push_back(its == nullptr ? graph_.inputs_[std::get<std::size_t>(source)].spec : spec_of[its->number]);
    }
    const Options options(node->json);
    GraphNode result{.path = node->path,
                     .op = node->op,
                     .resolved = resolve(*node, options, inputs),
                     .subgraph = node->within->number};
    result.parameters = parameters.add(options, result, graph_.is_private(result));
    options.refuse_other_keys(kNodeKeys);
    spec_of[node->number] = result.resolved.output;
    if (!is_needed_[node->number]) continue;
    for (const Source& source : sources_[node->number]) result.inputs.push_back(value_at(source));
    value_of[node->number] = graph_.inputs_.size() + graph_.nodes_.size();
    graph_.nodes_.push_back(std::move(result));
  }
  graph_.parameters_ = parameters.finish(graph_.nodes_);
  if (std::ranges::all_of(graph_.parameters_, &GraphParameter::is_frozen))
    graph_.warnings_.push_back("nothing is trained: no parameter that an output needs is free to change");
  for (std::size_t i = 0; i < root_->outputs.size(); ++i)
    graph_.outputs_.push_back({root_->outputs[i].name, value_at(output_sources_[i])});
}

}  // namespace tutti
