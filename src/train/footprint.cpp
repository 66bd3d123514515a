#include <tutti/train/footprint.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <tutti/base/chunk.hpp>
#include <tutti/collective/plan.hpp>
#include <tutti/coordinate/client_selection.hpp>
#include <tutti/coordinate/update_codec.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/sync/compression_plan.hpp>
#include <tutti/sync/shard_fold.hpp>
#include <tutti/train/found_partitions.hpp>
#include <tutti/train/pipeline_forecast.hpp>

#include "replica_mixer.hpp"
#include "trained_names.hpp"
#include "value_bytes.hpp"

namespace tutti {
namespace {

using detail::bytes_of;

// Each replica reads its slice of the others' gradients, or of what they made of those of their shards.
double moved_slices(int replicas, int logical_shards, double bytes) {
  const int shards = logical_shards == 0 ? replicas : logical_shards;
  std::size_t parts = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    const Slice own = chunk(static_cast<std::size_t>(shards), replicas, replica);
    parts += parts_of_shards(shards, static_cast<int>(own.first), static_cast<int>(own.count)).size();
  }
  return static_cast<double>(parts) * bytes * (replicas - 1) / replicas;
}

// Of a message that all replicas have.
double moved_by_all_reduce(const AllReduceStrategy& algorithm, int replicas, const CompressedMessage& message) {
  const auto bytes = static_cast<double>(message.bytes);
  if (message.is_gathered) return static_cast<double>(replicas) * (replicas - 1) * bytes;
  // Slices are read from all others, and written to them. Plans of many ranks are long, and all ranks together send
  // about as much, whatever the algorithm.
  constexpr int kMostPlanned = 256;
  if (std::holds_alternative<Auto>(algorithm) || std::holds_alternative<SharedSlices>(algorithm) ||
      is_of_engine(algorithm) || replicas > kMostPlanned)
    return 2.0 * (replicas - 1) * bytes;
  double elements = 0;
  for (int rank = 0; rank < replicas; ++rank) {
    Plan plan;
    make_plan({.call = CallKind::all_reduce,
               .algorithm = algorithm,
               .rank = Rank{rank},
               .size = replicas,
               .length = message.length},
              plan);
    elements += static_cast<double>(count(plan).elements_sent);
  }
  return message.length == 0 ? 0 : elements * bytes / static_cast<double>(message.length);
}

double moved_by(const strategy::AllReduce& method, int replicas, const std::vector<GradientShape>& shapes) {
  double moved = 0;
  const bool is_direct =
      std::holds_alternative<Auto>(method.algorithm) && std::holds_alternative<NoCompression>(method.compression);
  for (const CompressedMessage& message : compressed_messages(method.compression, shapes, DataType::float32)) {
    moved += is_direct ? moved_slices(replicas, method.logical_shards, static_cast<double>(message.bytes))
                       : moved_by_all_reduce(method.algorithm, replicas, message);
  }
  return moved;
}

// Between the server and its clients in a round, where all whom it asks answer.
double moved_by(const strategy::Federated& federated, const Graph& graph, const ClientCounts& clients,
                const std::vector<bool>& is_private) {
  const bool is_compressed = !std::holds_alternative<NoCompression>(federated.compression);
  double down = 0;
  double up = 0;
  const auto add = [&](const Shape& shape, ValueType type, bool is_trained) {
    const ParameterLayout layout{
        .name = {}, .shape = shape, .type = type == ValueType::int64 ? DataType::int64 : DataType::float32};
    const double bytes = bytes_of({.shape = shape, .type = type});
    down += bytes;
    up += is_compressed ? static_cast<double>(encoded_bytes(layout, federated.compression, is_trained)) : bytes;
  };
  for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
    if (!is_private[i] && !graph.parameters()[i].is_frozen) add(graph.parameters()[i].shape, ValueType::float32, true);
  }
  for (const GraphNode& node : graph.nodes()) {
    if (graph.is_private(node)) continue;
    for (const BufferSpec& buffer : node.resolved.buffers) add(buffer.shape, buffer.type, false);
  }
  const std::int64_t chosen = chosen_count(federated.client_selection, clients);
  // A client may answer several times before the buffer is full.
  const auto* synchronous = std::get_if<strategy::Synchronous>(&federated.round);
  const std::int64_t asked = synchronous == nullptr ? std::get<strategy::Buffered>(federated.round).replies
                                                    : std::min(chosen + synchronous->ask_beyond, clients.with_tags);
  double moved = static_cast<double>(asked) * (down + up);
  if (const auto* choice = std::get_if<strategy::PowerOfChoice>(&federated.client_selection))
    moved += static_cast<double>(candidate_count(*choice, clients.all, asked)) * down;
  return moved;
}

// Parameters that each replica has to itself, by number.
std::vector<bool> private_parameters(const Graph& graph) {
  std::vector<bool> is_private(graph.parameters().size());
  for (const GraphNode& node : graph.nodes()) {
    if (!graph.is_private(node)) continue;
    for (const std::size_t parameter : node.parameters) is_private[parameter] = true;
  }
  return is_private;
}

}  // namespace

Footprint footprint_of(const Run& run) {
  const Graph& graph = run.graph;
  const auto* parallel = std::get_if<strategy::DataParallel>(&graph.effective_strategy());
  const auto* method = parallel == nullptr ? nullptr : std::get_if<strategy::AllReduce>(&parallel->aggregation);
  Footprint footprint{.replicas = parallel == nullptr ? 1 : parallel->num_replicas};
  const auto replicas = static_cast<double>(footprint.replicas);

  const std::vector<bool> is_private = private_parameters(graph);
  const bool are_apart = detail::has_replica_mixer(run);  // replicas have all parameters to themselves
  std::vector<GradientShape> averaged;                    // of all replicas
  const std::vector<bool> is_trained = detail::trained_parameters_of(graph);
  double all = 0;    // of a replica, with buffers
  double mixed = 0;  // of what replicas give to each other
  double shared = 0;
  double own = 0;
  for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
    const GraphParameter& parameter = graph.parameters()[i];
    const double bytes = bytes_of({.shape = parameter.shape});
    const bool is_own = is_private[i] || are_apart;
    footprint.parameters += is_own ? replicas * bytes : bytes;
    all += bytes;
    if (!is_private[i] && is_trained[i]) mixed += bytes;
    if (parameter.is_frozen) continue;
    (is_own ? own : shared) += bytes;
    if (!is_private[i]) averaged.push_back(parameter.shape);
  }
  for (const GraphNode& node : graph.nodes()) {
    for (const BufferSpec& buffer : node.resolved.buffers) {
      const double bytes = bytes_of({.shape = buffer.shape, .type = buffer.type});
      all += bytes;
      footprint.parameters += replicas * bytes;
    }
  }
  const auto* server = parallel == nullptr ? nullptr : std::get_if<strategy::ParameterServer>(&parallel->aggregation);
  const bool is_lock_free = server != nullptr && server->consistency == strategy::Consistency::lock_free;
  // Each has a net to compute with, and what it computes of, and the run has one to evaluate. Beside them are the
  // parameters of the server, or those of each.
  const auto* neighbours = parallel == nullptr ? nullptr : std::get_if<strategy::Decentralized>(&parallel->aggregation);
  const bool is_gossip = neighbours != nullptr && neighbours->gossip;
  if (is_gossip || (server != nullptr && server->consistency != strategy::Consistency::synchronous)) {
    footprint.parameters = (replicas + 1) * all + replicas * mixed;
    footprint.parameters += (is_gossip ? replicas : is_lock_free ? 1 + replicas : 1) * mixed;
    shared = is_gossip ? 0 : mixed;
    own = is_gossip ? mixed : 0;
  }
  const double optimized = (is_lock_free ? replicas * shared : shared) + replicas * own;  // each has an optimizer
  footprint.optimizer_state = static_cast<double>(state_count(run.optimizer)) * optimized;
  const std::size_t parts = method == nullptr || method->logical_shards == 0
                                ? 1
                                : most_parts_at_once(method->logical_shards, static_cast<int>(footprint.replicas));
  footprint.gradients = replicas * static_cast<double>(parts) * (shared + own);
  for (const GraphInput& input : graph.inputs()) footprint.values += bytes_of(input.spec);
  for (const GraphNode& node : graph.nodes()) footprint.values += bytes_of(node.resolved.output);
  footprint.values *= static_cast<double>(run.data.batch_size);
  if (std::holds_alternative<strategy::Local>(graph.effective_strategy())) footprint.moved = 0;
  if (method != nullptr) footprint.moved = moved_by(*method, static_cast<int>(footprint.replicas), averaged);
  if (server != nullptr) footprint.moved = 2 * replicas * shared;  // gradients there, parameters back
  if (parallel != nullptr && parallel->sync_every > 1)
    footprint.moved = 2 * (replicas - 1) * mixed / static_cast<double>(parallel->sync_every);
  if (const auto* decentralized =
          parallel == nullptr ? nullptr : std::get_if<strategy::Decentralized>(&parallel->aggregation)) {
    const MixingMatrix mixing(decentralized->topology,
                              {.replicas = static_cast<int>(footprint.replicas), .seed = run.seed});
    // Of two that gossip both give to the other.
    const double met = mixing.size() > 1 ? 2.0 * mixing.size() : 0;
    footprint.moved = (decentralized->gossip ? met : static_cast<double>(mixing.heard())) * mixed;
  }
  if (std::holds_alternative<strategy::ModelParallel>(graph.effective_strategy()) && !wants_partitions(run)) {
    footprint.moved = 0;
    for (const PipelineTraffic& traffic : traffic_of(run)) *footprint.moved += traffic.bytes();
  }
  if (const auto* federated = std::get_if<strategy::Federated>(&graph.effective_strategy()))
    footprint.moved = moved_by(*federated, graph, client_counts(run), is_private);
  return footprint;
}

}  // namespace tutti
