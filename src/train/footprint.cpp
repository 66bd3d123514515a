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
  if (parallel != nullptr && replicas > 1) {
    if (const auto* method = std::get_if<strategy::AllReduce>(&parallel->aggregation))
      footprint.moved = moved_by(*method, replicas, trained);
  }
  return footprint;
}

}  // namespace tutti
