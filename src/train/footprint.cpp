#include <tutti/train/footprint.hpp>

#include <tutti/collective/plan.hpp>

namespace tutti {
namespace {

double bytes_of(const ValueSpec& spec) {
  return static_cast<double>(element_count(spec.shape).value_or(0)) * (spec.type == ValueType::int64 ? 8 : 4);
}

double moved_by(const strategy::AllReduce& method, std::int64_t replicas, double bytes) {
  const auto count_of_replicas = static_cast<double>(replicas);
  // Each replica reads its slice of the others' gradients.
  if (std::holds_alternative<Auto>(method.algorithm) || std::holds_alternative<SharedSlices>(method.algorithm) ||
      is_of_engine(method.algorithm))
    return (count_of_replicas - 1) * bytes;
  // Plans of many ranks are long; all ranks together send about so much, whatever the algorithm.
  constexpr std::int64_t kMostPlanned = 256;
  if (replicas > kMostPlanned) return 2 * (count_of_replicas - 1) * bytes;
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
  footprint.replicas = replicas;
  footprint.optimizer_state = static_cast<double>(state_count(run.optimizer)) * trained;
  footprint.gradients = static_cast<double>(replicas) * trained;
  for (const GraphInput& input : run.graph.inputs()) footprint.values += bytes_of(input.spec);
  for (const GraphNode& node : run.graph.nodes()) footprint.values += bytes_of(node.resolved.output);
  footprint.values *= static_cast<double>(run.data.batch_size);
  if (std::holds_alternative<strategy::Local>(run.graph.effective_strategy())) footprint.moved = 0;
  if (parallel != nullptr) {
    if (const auto* method = std::get_if<strategy::AllReduce>(&parallel->aggregation))
      footprint.moved = replicas > 1 ? moved_by(*method, replicas, trained) : 0;
  }
  return footprint;
}

}  // namespace tutti
