#include <tutti/train/footprint.hpp>

#include <algorithm>
#include <cmath>

#include <tutti/collective/plan.hpp>

namespace tutti {
namespace {

double bytes_of(const ValueSpec& spec) {
  return static_cast<double>(element_count(spec.shape).value_or(0)) * (spec.type == ValueType::int64 ? 8 : 4);
}

// For a row: every value that somebody needs again, once, and what nodes keep besides.
double kept_for_a_row(const Graph& graph) {
  std::vector<bool> is_kept(graph.inputs().size() + graph.nodes().size());
  double more = 0;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    const KeptForBackward& kept = node.resolved.kept;
    if (kept.inputs) {
      for (const std::size_t value : node.inputs) is_kept[value] = true;
    }
    if (kept.output) is_kept[graph.inputs().size() + i] = true;
    more += kept.more_bytes;
  }
  // The loss keeps what comes out.
  for (const GraphOutput& output : graph.outputs()) is_kept[output.value] = true;
  for (std::size_t value = 0; value < is_kept.size(); ++value) {
    if (is_kept[value]) more += bytes_of(graph.value(value));
  }
  return more;
}

// On the way back there are, besides, the gradients of a node's output and of its inputs.
double largest_gradients_for_a_row(const Graph& graph) {
  double largest = 0;
  for (const GraphNode& node : graph.nodes()) {
    double its = bytes_of(node.resolved.output);
    for (const std::size_t value : node.inputs) {
      if (value >= graph.inputs().size()) its += bytes_of(graph.value(value));
    }
    largest = std::max(largest, its);
  }
  return largest;
}

double moved_by(const strategy::AllReduce& method, std::int64_t replicas, double bytes) {
  const auto count_of_replicas = static_cast<double>(replicas);
  // Each replica reads its slice of the others' gradients.
  if (std::holds_alternative<Auto>(method.algorithm) || std::holds_alternative<SharedSlices>(method.algorithm) ||
      is_of_engine(method.algorithm))
    return (count_of_replicas - 1) * bytes;
  const auto length = static_cast<std::size_t>(bytes / 4);
  double elements = 0;
  for (int rank = 0; rank < static_cast<int>(replicas); ++rank) {
    Plan plan;
    make_plan({.call = CallKind::all_reduce,
               .algorithm = method.algorithm,
               .rank = Rank{rank},
               .size = static_cast<int>(replicas),
               .length = length},
              plan);
    elements += static_cast<double>(count(plan).elements_sent);
  }
  return 4 * elements;
}

}  // namespace

Footprint footprint_of(const Run& run) {
  double trained = 0;
  Footprint footprint;
  for (const GraphParameter& parameter : run.graph.parameters()) {
    const double bytes = bytes_of({.shape = parameter.shape});
    footprint.parameters += bytes;
    if (!parameter.is_frozen) trained += bytes;
  }
  for (const GraphNode& node : run.graph.nodes()) {
    for (const BufferSpec& buffer : node.resolved.buffers)
      footprint.parameters += bytes_of({.shape = buffer.shape, .type = buffer.type});
  }
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const std::int64_t replicas = parallel == nullptr ? 1 : parallel->num_replicas;
  footprint.optimizer_state = static_cast<double>(state_count(run.optimizer)) * trained;
  footprint.gradients = static_cast<double>(replicas) * trained;
  const double rows = std::ceil(static_cast<double>(run.data.batch_size) / static_cast<double>(replicas));
  footprint.activations =
      static_cast<double>(replicas) * rows * (kept_for_a_row(run.graph) + largest_gradients_for_a_row(run.graph));
  if (parallel != nullptr && replicas > 1) {
    if (const auto* method = std::get_if<strategy::AllReduce>(&parallel->aggregation))
      footprint.moved = moved_by(*method, replicas, trained);
  }
  return footprint;
}

}  // namespace tutti
