#include <tutti/graph/graph_module.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <tutti/graph/consumers.hpp>
#include <tutti/nn/random_draws.hpp>

#include "cause.hpp"
#include "module_tree.hpp"
#include "sizes.hpp"

namespace tutti {
namespace {

// From how many consumers on the order of a sum matters. Two gradients give the same bits either way, but a consumer
// that uses a value twice brings two.
constexpr std::size_t kOrderMatters = 2;

// What modules draw when they are made is none of any step's.
constexpr std::uint64_t kBeforeTheFirst = std::numeric_limits<std::uint64_t>::max();

// FNV-1a: a number for a path, the same everywhere.
std::uint64_t number_of(std::string_view path) {
  std::uint64_t number = 14695981039346656037u;
  for (const char letter : path) number = (number ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return number;
}

// The same value for each of its consumers; their gradients add up in the order of the results.
struct ForEachConsumer : torch::autograd::Function<ForEachConsumer> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const torch::Tensor& value,
                                                std::int64_t consumers) {
    context->set_materialize_grads(false);
    torch::autograd::variable_list results;
    for (std::int64_t i = 0; i < consumers; ++i) results.push_back(value.detach());
    return results;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    torch::Tensor sum;
    for (const torch::Tensor& gradient : gradients) {
      if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
    }
    return {sum, torch::Tensor()};
  }
};

torch::Tensor initial_tensor(const GraphParameter& parameter, std::uint64_t seed) {
  const std::array<std::uint64_t, 2> stream{seed, number_of(parameter.path)};
  std::vector<float> values = initial_values(*parameter.initial, parameter.shape, stream);
  return torch::from_blob(values.data(), parameter.shape).clone();
}

torch::Tensor first_buffer(const BufferSpec& spec) {
  const auto type = spec.type == ValueType::int64 ? torch::kInt64 : torch::kFloat32;
  return torch::full(spec.shape, spec.value, torch::TensorOptions(type));
}

template <typename Options>
bool multiply_rate(torch::optim::OptimizerOptions& options, double factor) {
  auto* its = dynamic_cast<Options*>(&options);
  if (its == nullptr) return false;
  its->lr(its->lr() * factor);
  return true;
}

}  // namespace

// A node, ready to compute.
struct GraphModule::Step {
  const GraphNode* node = nullptr;
  std::vector<torch::Tensor> parameters = {};
  std::vector<torch::Tensor> buffers = {};
  const torch::nn::Module* own = nullptr;          // of this path: it may be evaluated while others are trained
  std::shared_ptr<torch::nn::Module> module = {};  // where the operator has one
  std::uint64_t place = 0;
  // Which of several copies is this node's, by input and by parameter.
  std::vector<std::size_t> input_copies = {};
  std::vector<std::size_t> parameter_copies = {};
  std::vector<std::size_t> values_done = {};  // that nobody needs after this node
};

GraphModule::~GraphModule() = default;

GraphModule::GraphModule(Graph graph, std::uint64_t seed) : GraphModule(std::move(graph), std::optional(seed), {}) {}

GraphModule::GraphModule(Graph graph, std::uint64_t seed, const std::vector<bool>& is_part)
    : GraphModule(std::move(graph), std::optional(seed), is_part) {}

GraphModule::GraphModule(Graph graph, std::optional<std::uint64_t> seed, const std::vector<bool>& is_part)
    : torch::nn::Module("GraphModule"), graph_(std::make_shared<const Graph>(std::move(graph))), is_part_(is_part) {
  const std::vector<GraphNode>& nodes = graph_->nodes();
  const auto has_node = [&](std::size_t node) { return is_part.empty() || is_part[node]; };
  const std::vector<GraphParameter>& parameters = graph_->parameters();
  std::vector<torch::Tensor> tensors(parameters.size());
  std::vector<bool> is_made_here(parameters.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const std::size_t index : nodes[n].parameters)
      is_made_here[index] = is_made_here[index] || (has_node(n) && !nodes[n].resolved.make_module);
  }
  detail::ModuleTree tree(*this);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_made_here[i]) continue;
    const auto [path, name] = detail::split_path(parameters[i].path);
    tensors[i] = tree.at(path).register_parameter(
        name, seed ? initial_tensor(parameters[i], *seed) : torch::empty(parameters[i].shape),
        !parameters[i].is_frozen);
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const GraphNode& node = nodes[n];
    Step step{.node = &node, .place = number_of(node.path)};
    if (!has_node(n)) {
      steps_.push_back(std::move(step));
      continue;
    }
    if (node.resolved.make_module) {
      {
        const RandomDraws draws({.seed = seed.value_or(0), .step = kBeforeTheFirst, .place = step.place});
        step.module = node.resolved.make_module();
      }
      const auto [path, name] = detail::split_path(node.path);
      tree.at(path).register_module(name, step.module);
      const auto named = step.module->named_parameters();
      for (const std::size_t index : node.parameters) {
        const GraphParameter& parameter = parameters[index];
        torch::Tensor tensor = named[parameter.path.substr(node.path.size() + 1)];
        const torch::NoGradGuard no_gradients;
        if (parameter.initial && seed) tensor.copy_(initial_tensor(parameter, *seed));
        tensor.set_requires_grad(!parameter.is_frozen);
        tensors[index] = tensor;
      }
    } else {
      for (const BufferSpec& buffer : node.resolved.buffers) {
        const auto [path, name] = detail::split_path(node.path + "." + buffer.name);
        step.buffers.push_back(tree.at(path).register_buffer(name, first_buffer(buffer)));
      }
    }
    step.own = step.module ? step.module.get() : &tree.at(node.path);
    for (const std::size_t index : node.parameters) step.parameters.push_back(tensors[index]);
    steps_.push_back(std::move(step));
  }
  parameters_by_number_ = std::move(tensors);
  order_consumers();
}

void GraphModule::order_consumers() {
  const Consumers consumers = consumers_of(*graph_);
  for (Step& step : steps_) {
    step.input_copies.assign(step.node->inputs.size(), 0);
    step.parameter_copies.assign(step.node->parameters.size(), 0);
  }
  output_copies_.assign(graph_->outputs().size(), 0);
  const auto place_copies = [&](const std::vector<std::vector<Consumer>>& all, std::vector<std::size_t>& copies,
                                std::vector<std::size_t> Step::*of_step) {
    for (const std::vector<Consumer>& its : all) {
      copies.push_back(its.size() >= kOrderMatters ? its.size() : 0);
      for (std::size_t i = 0; i < its.size() && copies.back() > 0; ++i)
        (its[i].node == steps_.size() ? output_copies_ : steps_[its[i].node].*of_step)[its[i].position] = i;
    }
  };
  place_copies(consumers.of_value, value_copies_, &Step::input_copies);
  place_copies(consumers.of_parameter, parameter_copies_, &Step::parameter_copies);
  has_shared_parameters_ = std::ranges::any_of(parameter_copies_, [](std::size_t copies) { return copies > 0; });
  for (std::size_t value = 0; value < consumers.of_value.size(); ++value) {
    std::size_t last = 0;
    for (const Consumer& one : consumers.of_value[value]) last = std::max(last, one.node);
    if (!consumers.of_value[value].empty() && last < steps_.size()) steps_[last].values_done.push_back(value);
  }
}

namespace {

// A copy for each consumer where their order matters.
SharedTensor shared(torch::Tensor tensor, std::size_t consumers) {
  SharedTensor result{.whole = std::move(tensor)};
  if (consumers > 0 && torch::GradMode::is_enabled() && result.whole.requires_grad())
    result.copies = ForEachConsumer::apply(result.whole, static_cast<std::int64_t>(consumers));
  return result;
}

// How often each was written to; nobody counts that under InferenceMode.
std::uint64_t writes_to(std::span<const torch::Tensor> inputs) {
  std::uint64_t writes = 0;
  for (const torch::Tensor& input : inputs) writes += input.is_inference() ? 0 : input._version();
  return writes;
}

// What an operator promised: users write them, too.
torch::Tensor compute_as_promised(const GraphNode& node, const OperatorCall& call) {
  const std::uint64_t before = writes_to(call.inputs);
  torch::Tensor output = node.resolved.compute(call);
  if (writes_to(call.inputs) != before)
    throw UsageError("it writes to its input, which others use, too; compute on a clone of it");
  const std::int64_t rows = call.inputs.front().size(0);
  const Shape& shape = node.resolved.output.shape;
  const at::IntArrayRef sizes = output.defined() ? output.sizes() : at::IntArrayRef();
  if (sizes.size() != shape.size() + 1 || sizes[0] != rows || sizes.slice(1) != at::IntArrayRef(shape)) {
    throw UsageError(fmt::format("expected {} rows of {} to come out, found {}", rows, to_string(shape),
                                 output.defined() ? "the shape " + detail::text_of(sizes) : "nothing"));
  }
  return output;
}

// What goes wrong is told with the node.
torch::Tensor compute_node(const GraphNode& node, const OperatorCall& call) {
  const auto sentence = [&](const std::exception& error) {
    return fmt::format("the node '{}' ({}): {}", node.path, node.op, detail::cause_of(error));
  };
  try {
    return compute_as_promised(node, call);
  } catch (const PeerError&) {  // batch norm over all ranks
    throw;
  } catch (const UsageError& error) {
    throw UsageError(sentence(error));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(sentence(error));
  }
}

void refuse_unless_like(const GraphInput& input, const torch::Tensor& found) {
  const at::IntArrayRef sizes = found.defined() ? found.sizes() : at::IntArrayRef();
  const bool is_like = found.defined() && !sizes.empty() && sizes.slice(1) == at::IntArrayRef(input.spec.shape);
  const bool has_type = found.defined() && (input.spec.type == ValueType::int64 ? found.scalar_type() == torch::kInt64
                                                                                : found.is_floating_point());
  if (is_like && has_type) return;
  const std::string text =
      found.defined() ? fmt::format("{} {}", c10::toString(found.scalar_type()), detail::text_of(sizes)) : "nothing";
  throw UsageError(fmt::format("the input '{}': expected rows of {} of {}, found {}", input.name,
                               to_string(input.spec.shape), to_string(input.spec.type), text));
}

}  // namespace

std::vector<torch::Tensor> GraphModule::forward(const std::vector<torch::Tensor>& inputs) {
  const std::size_t input_count = graph_->inputs().size();
  if (inputs.size() != input_count)
    throw UsageError(fmt::format("the graph has {} inputs, found {}", input_count, inputs.size()));
  GraphPass pass;
  pass.values.resize(input_count + steps_.size());
  for (std::size_t i = 0; i < input_count; ++i) {
    refuse_unless_like(graph_->inputs()[i], inputs[i]);
    if (inputs[i].size(0) != inputs[0].size(0)) {
      throw UsageError(fmt::format("the inputs '{}' and '{}' have {} and {} rows", graph_->inputs()[0].name,
                                   graph_->inputs()[i].name, inputs[0].size(0), inputs[i].size(0)));
    }
    pass.values[i] = shared(inputs[i], value_copies_[i]);
  }
  if (has_shared_parameters_) {
    pass.parameters.resize(parameter_copies_.size());
    for (std::size_t i = 0; i < parameter_copies_.size(); ++i) {
      if (parameter_copies_[i] > 0) pass.parameters[i] = shared(parameters_by_number_[i], parameter_copies_[i]);
    }
  }
  const std::uint64_t place = next_place();
  for (const Step& step : steps_) {
    compute(step, pass, place);
    for (const std::size_t value : step.values_done) pass.values[value] = {};
  }
  std::vector<torch::Tensor> outputs;
  for (std::size_t i = 0; i < graph_->outputs().size(); ++i)
    outputs.push_back(pass.values[graph_->outputs()[i].value].for_consumer(output_copies_[i]));
  return outputs;
}

void GraphModule::compute(std::span<const std::size_t> nodes, GraphPass& pass) const {
  const std::uint64_t place = next_place();
  for (const std::size_t node : nodes) compute(steps_[node], pass, place);
}

// A second pass in a step, or that of another module, draws something else.
std::uint64_t GraphModule::next_place() const {
  constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15;
  const RandomDraws* draws = RandomDraws::current();
  return draws == nullptr ? 0 : (draws->key().place * kSpread + draws->next_inside()) * kSpread;
}

void GraphModule::compute(const Step& step, GraphPass& pass, std::uint64_t place) const {
  const GraphNode& node = *step.node;
  std::vector<torch::Tensor> arguments;
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    arguments.push_back(pass.values[node.inputs[i]].for_consumer(step.input_copies[i]));
  std::span<const torch::Tensor> parameters = step.parameters;
  std::vector<torch::Tensor> copies;
  if (!pass.parameters.empty()) {
    for (std::size_t i = 0; i < node.parameters.size(); ++i) {
      const SharedTensor& its = pass.parameters[node.parameters[i]];
      copies.push_back(its.whole.defined() ? its.for_consumer(step.parameter_copies[i]) : step.parameters[i]);
    }
    parameters = copies;
  }
  std::optional<RandomDraws> scope;
  if (const RandomDraws* draws = RandomDraws::current();
      draws != nullptr && node.resolved.draws && step.own->is_training()) {
    RandomDrawsKey key = draws->key();
    key.place = step.place + place;
    scope.emplace(key);
  }
  torch::Tensor output = compute_node(node, {.inputs = arguments,
                                             .parameters = parameters,
                                             .buffers = step.buffers,
                                             .is_training = step.own->is_training(),
                                             .module = step.module.get()});
  const std::size_t value = graph_->inputs().size() + static_cast<std::size_t>(&step - steps_.data());
  pass.values[value] = shared(std::move(output), value_copies_[value]);
}

torch::Tensor GraphModule::forward(const torch::Tensor& input) {
  if (graph_->inputs().size() != 1 || graph_->outputs().size() != 1) {
    throw UsageError(fmt::format("the graph has {} inputs and {} outputs: expected a list of tensors",
                                 graph_->inputs().size(), graph_->outputs().size()));
  }
  return forward(std::vector<torch::Tensor>{input}).front();
}

std::vector<torch::optim::OptimizerParamGroup> GraphModule::groups(
    const torch::optim::OptimizerOptions& options) const {
  std::vector<std::pair<double, std::vector<torch::Tensor>>> by_factor;
  for (std::size_t i = 0; i < parameters_by_number_.size(); ++i) {
    const GraphParameter& parameter = graph_->parameters()[i];
    if (parameter.is_frozen || !parameters_by_number_[i].defined()) continue;
    auto found = std::ranges::find(by_factor, parameter.lr_factor, [](const auto& group) { return group.first; });
    if (found == by_factor.end()) found = by_factor.insert(by_factor.end(), {parameter.lr_factor, {}});
    found->second.push_back(parameters_by_number_[i]);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto& [factor, tensors] : by_factor) {
    std::unique_ptr<torch::optim::OptimizerOptions> its = options.clone();
    namespace optim = torch::optim;
    const bool is_known =
        multiply_rate<optim::SGDOptions>(*its, factor) || multiply_rate<optim::AdamOptions>(*its, factor) ||
        multiply_rate<optim::AdamWOptions>(*its, factor) || multiply_rate<optim::RMSpropOptions>(*its, factor) ||
        multiply_rate<optim::AdagradOptions>(*its, factor);
    if (!is_known && factor != 1)
      throw UsageError("lr_factor: these optimizer options are none of SGD's, Adam's, AdamW's, RMSprop's or Adagrad's");
    groups.emplace_back(std::move(tensors), std::move(its));
  }
  return groups;
}

std::shared_ptr<torch::nn::Module> GraphModule::clone(const c10::optional<torch::Device>& device) const {
  std::shared_ptr<GraphModule> copy(new GraphModule(*graph_, std::nullopt, is_part_));
  const torch::NoGradGuard no_gradients;
  const auto take = [&](torch::Tensor& to, const torch::Tensor& from) {
    to.set_data(device ? from.detach().to(*device, /*non_blocking=*/false, /*copy=*/true) : from.detach().clone());
    to.set_requires_grad(from.requires_grad());
  };
  auto parameters = copy->named_parameters();
  for (const auto& item : named_parameters()) take(parameters[item.key()], item.value());
  auto buffers = copy->named_buffers();
  for (const auto& item : named_buffers()) take(buffers[item.key()], item.value());
  copy->train(is_training());
  return copy;
}

void GraphModule::pretty_print(std::ostream& stream) const {
  stream << fmt::format("GraphModule of {} nodes and {} parameters", graph_->nodes().size(),
                        graph_->parameters().size());
}

}  // namespace tutti
