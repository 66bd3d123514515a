#include "client_ground.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/random.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "private_names.hpp"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kSpeedDraws = 0x59eed;
constexpr std::uint64_t kTestRowDraws = 0x7e57;

std::vector<std::int64_t> labels_of(const Run& run, const Dataset& rows) {
  const DataDescription& data = run.data.opened_by.description;
  if (data.classes == 0 || !data.target.shape.empty()) return {};
  constexpr std::int64_t kAtOnce = 4096;
  std::vector<std::int64_t> labels;
  for (std::int64_t first = 0; first < rows.size(); first += kAtOnce) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(kAtOnce, rows.size() - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    const torch::Tensor targets = rows.packed_rows(numbers).target.contiguous();
    labels.insert(labels.end(), targets.data_ptr<std::int64_t>(), targets.data_ptr<std::int64_t>() + targets.numel());
  }
  return labels;
}

// Of each client's rows a share, and at least one where it has two.
void take_test_rows(ClientGround& ground, std::vector<std::string>& warnings) {
  const double share = ground.run->data.client_test;
  if (share == 0) return;
  ground.test.resize(ground.train.size());
  for (std::size_t client = 0; client < ground.train.size(); ++client) {
    std::vector<std::int64_t>& train = ground.train[client];
    if (train.size() < 2) continue;
    const auto count = std::clamp<std::size_t>(
        static_cast<std::size_t>(share * static_cast<double>(train.size()) + 0.5), 1, train.size() - 1);
    RandomStream draws({ground.run->seed, kTestRowDraws, client});
    draws.shuffle(std::span(train));
    ground.test[client].assign(train.end() - static_cast<std::ptrdiff_t>(count), train.end());
    train.resize(train.size() - count);
    std::ranges::sort(train);
    std::ranges::sort(ground.test[client]);
  }
  if (std::ranges::all_of(ground.test, [](const auto& rows) { return rows.empty(); }))
    warnings.push_back(fmt::format("data.client_test: each of {} clients has one row, and none left to evaluate with",
                                   ground.test.size()));
}

// Batch norm over single numbers needs two rows of them, and fails a client that has a batch of one.
void warn_of_rows_alone(const ClientGround& ground, std::vector<std::string>& warnings) {
  const auto& nodes = ground.run->graph.nodes();
  const auto norm = std::ranges::find_if(
      nodes, [](const GraphNode& node) { return node.op == "batch_norm" && node.resolved.output.shape.size() == 1; });
  if (norm == nodes.end()) return;
  std::int64_t in_small_batches = 0;  // all of their batches are of one row
  std::int64_t with_one_row = 0;
  std::int64_t at_the_end = 0;  // the last batch of an epoch alone
  for (std::size_t client = 0; client < ground.train.size(); ++client) {
    const ClientSettings& its = ground.settings_of(static_cast<std::int64_t>(client));
    const std::int64_t rows = std::ssize(ground.train[client]);
    const bool has_whole_epoch = its.steps(rows) >= its.steps_per_epoch(rows);
    if (its.batch_size == 1)
      ++in_small_batches;
    else if (rows == 1)
      ++with_one_row;
    else if (has_whole_epoch && its.rows_per_epoch(rows) % its.batch_size == 1)
      ++at_the_end;
  }
  const std::int64_t alone = in_small_batches + with_one_row + at_the_end;
  if (alone == 0) return;
  std::vector<std::string> kinds;
  const auto tell = [&](std::int64_t clients, std::string_view how) {
    if (clients > 0) kinds.push_back(fmt::format("{} {}", clients, how));
  };
  tell(at_the_end, R"(at the end of an epoch, where "drop_last": true in data leaves it out)");
  tell(with_one_row, "with one row in all, which drop_last keeps: fewer clients, or another client_split, give more");
  tell(in_small_batches, "with a batch_size of 1");
  warnings.push_back(fmt::format(
      "'{}' (batch_norm) needs at least 2 rows, and {} of {} clients have a batch of 1: these will fail ({})",
      norm->path, alone, ground.train.size(), fmt::join(kinds, "; ")));
}

}  // namespace

std::shared_ptr<ClientGround> make_client_ground(std::shared_ptr<const Run> run, std::shared_ptr<const Dataset> rows,
                                                 const GraphModule& net, std::vector<std::string>& warnings) {
  auto ground = std::make_shared<ClientGround>();
  ground->run = std::move(run);
  ground->rows = std::move(rows);
  const Run& its = *ground->run;
  const auto& federated = std::get<strategy::Federated>(its.graph.effective_strategy());
  ground->labels = labels_of(its, *ground->rows);
  if (needs_labels(its.data.client_split) && ground->labels.empty())
    throw UsageError(fmt::format("data.client_split: {} looks at the class of a row, and rows have several",
                                 to_string(its.data.client_split)));
  if (ground->rows->size() < federated.num_clients)
    throw UsageError(fmt::format("graph.strategy.num_clients: {} rows to train with cannot be dealt out to {} clients",
                                 ground->rows->size(), federated.num_clients));
  std::vector<std::int64_t> file_of_row = ground->rows->file_of_row();
  if (file_of_row.empty()) file_of_row.resize(static_cast<std::size_t>(ground->rows->size()));
  try {
    ground->train = split_clients(its.data.client_split,
                                  {.clients = federated.num_clients,
                                   .rows = ground->rows->size(),
                                   .labels = ground->labels,
                                   .file_of_row = file_of_row},
                                  its.seed);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("data.client_split: {}", error.what()));
  }
  take_test_rows(*ground, warnings);
  for (const ClientGroup& group : its.clients) {
    ground->group_of.resize(ground->group_of.size() + static_cast<std::size_t>(group.count),
                            static_cast<std::uint32_t>(ground->settings.size()));
    ground->settings.push_back({.local = group.local.value_or(federated.local),
                                .batch_size = group.batch_size.value_or(its.data.batch_size),
                                .optimizer = group.optimizer.value_or(its.optimizer),
                                .schedule = group.schedule,
                                .drop_last = its.data.options.drop_last});
  }
  const auto is_personal = private_names(its.graph);
  const auto add = [&](const std::string& name, const torch::Tensor& tensor, bool is_trained) {
    if (is_personal && is_personal(name)) {
      add_tensor(ground->personal, name, tensor);
    } else {
      add_tensor(ground->shared, name, tensor);
      ground->is_trained.push_back(is_trained);
    }
  };
  for (const auto& item : net.named_parameters()) {
    if (item.value().requires_grad())
      add(item.key(), item.value(), true);
    else
      add_tensor(ground->fixed, item.key(), item.value());
  }
  for (const auto& item : net.named_buffers()) add(item.key(), item.value(), false);
  warn_of_rows_alone(*ground, warnings);
  if (std::ranges::none_of(ground->is_trained, std::identity()))
    throw UsageError("there is nothing for clients to learn together: all parameters are frozen or stay on the client");
  return ground;
}

void describe_clients(const ClientGround& ground, std::vector<ClientInfo>& clients,
                      std::vector<ClientBehaviour>& behaviour) {
  for (std::size_t client = 0; client < ground.train.size(); ++client) {
    const ClientGroup& group = ground.run->clients[ground.group_of[client]];
    const std::int64_t rows = std::ssize(ground.train[client]);
    RandomStream draws({ground.run->seed, kSpeedDraws, client});
    const double speed = draw(group.speed, draws);
    const double dropout = draw(group.dropout, draws);
    const double failure = draw(group.failure, draws);
    const auto steps = static_cast<double>(ground.settings_of(static_cast<std::int64_t>(client)).steps(rows));
    clients.push_back({.tags = group.tags, .rows = rows});
    behaviour.push_back({.fit_seconds = steps / std::max(speed, 1e-9),
                         .dropout = std::clamp(dropout, 0.0, 1.0),
                         .failure = std::clamp(failure, 0.0, 1.0),
                         .update_factor = group.update_factor});
  }
}

}  // namespace tutti::detail
