#include <tutti/nn/distributed_module.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/sync_batch_norm.hpp>
#include <tutti/sync/bucket_plan.hpp>
#include <tutti/sync/shard_fold.hpp>

#include "kernel_optimizer.hpp"
#include "module_agreement.hpp"
#include "module_parameters.hpp"
#include "shard_buffers.hpp"
#include "shard_gradients.hpp"
#include "thread_settings.hpp"

namespace tutti {
using detail::ModuleParameter;
using detail::ShardGradients;
using detail::ShardLoss;

struct DistributedModule::Inside {
  struct Bucket {
    std::vector<std::size_t> parameters;
    torch::Tensor memory;  // gradients that the module holds are views of it
    GradientBuffers gradients;
    std::size_t pending = 0;
  };

  // What hooks hold on to, which may outlive this.
  struct Link {
    Inside* inside = nullptr;
  };

  struct Parameter {
    std::string name;
    torch::Tensor variable;
    DataType type = DataType::float32;
    std::shared_ptr<torch::autograd::Node> accumulator;  // null while it is frozen
    std::size_t bucket = 0;
    Array place;
    torch::Tensor view;  // of that place, laid out as the parameter
    bool is_ready = false;
    bool is_used = false;
  };

  Inside(std::shared_ptr<torch::nn::Module> its_module, Communicator its_world, const DistributedOptions& its_options);
  ~Inside();

  void share_state(Rank root);
  void lay_out_buckets();
  void install_hooks();

  // --- a round ---
  // With the losses of this rank's shards; all others' are 0.
  void begin_round(std::vector<ShardLoss> its_losses, bool its_active);
  std::vector<ShardLoss> only(const ShardLoss& mine) const {
    std::vector<ShardLoss> all(static_cast<std::size_t>(shards));
    all[static_cast<std::size_t>(world.rank().value)] = mine;
    return all;
  }
  void on_gradient(std::size_t index);
  void put_in_place(Parameter& parameter);
  void mark_ready(std::size_t index);
  void finish_round(bool failed);
  void run_ready();
  void exchange_header();
  void exchange_bucket(std::size_t index);
  void exchange_parts(Bucket& bucket);
  void exchange_tail(bool failed);
  void agree_on_order();
  void set_gradients();
  void scale(Bucket& bucket, double factor) const;
  void look_at(const Bucket& bucket);
  void tell(const BucketEvent& event) const {
    if (options.on_event) options.on_event(event);
  }
  void serve();

  void take_part_with_nothing();
  // Of a forward pass that the caller made.
  void keep_buffers() {
    buffers->forget();
    buffers->keep(world.rank().value, *module);
  }
  // They could only be put in place before that pass.
  void refuse_shards_own_buffers() const {
    if (buffers_mode != Buffers::per_shard) return;
    throw UsageError(
        "buffers: each shard's own are only in place while backward(batch, closure) computes it; take follow_first or "
        "averaged");
  }
  // Runs a backward pass; where that throws, the others hear of it and what it threw goes on.
  template <typename Backward>
  void run_backward(Backward backward);
  double backward_one_shard(std::int64_t rows, const std::function<WeightedLoss(const Rows&)>& loss);
  double backward_shards(std::int64_t rows, const std::function<WeightedLoss(const Rows&)>& loss);
  Rows rows_of(int shard, std::int64_t rows) const {
    return {.first = shard, .stride = shards, .count = shard < rows ? (rows - shard + shards - 1) / shards : 0};
  }

  std::shared_ptr<torch::nn::Module> module;
  Communicator world;
  std::optional<Communicator> norm_world;
  DistributedOptions options;
  int shards = 1;
  Buffers buffers_mode = Buffers::follow_first;
  std::vector<ModuleParameter> module_parameters;
  std::vector<Parameter> parameters;
  std::vector<std::size_t> order;  // of parameters, in buckets
  std::vector<Bucket> buckets;
  std::optional<detail::ShardBuffers> buffers;
  std::optional<GradientCompressor> compressor;
  std::shared_ptr<Link> link = std::make_shared<Link>();
  int unsynced = 0;
  double unsynced_weight = 0;
  std::uint64_t step_number = 0;
  bool has_agreed_on_order = false;
  std::optional<Failure> broken;

  // The round in progress. `state` guards what the two threads tell each other, `exchanging` the communicator.
  bool is_open = false;
  std::vector<ShardLoss> losses;  // by shard; of others 0
  bool is_active = true;
  std::vector<std::size_t> ready_order;
  std::mutex state;
  std::condition_variable changed;
  std::size_t ready_buckets = 0;
  bool ended = false;
  std::mutex exchanging;
  bool has_header = false;
  std::atomic<std::size_t> next_bucket{0};
  std::atomic<bool> has_error{false};
  std::exception_ptr error;
  std::string not_finite;
  double total_weight = 0;
  std::vector<bool> actives;
  Rank last_active{0};
  std::vector<std::int64_t> uses;                   // by parameter: on how many ranks
  const ShardGradients* shard_gradients = nullptr;  // in place of the buckets' contents
  RoundReport report;
  std::thread thread;
};

DistributedModule::Inside::Inside(std::shared_ptr<torch::nn::Module> its_module, Communicator its_world,
                                  const DistributedOptions& its_options)
    : module(std::move(its_module)), world(std::move(its_world)), options(its_options) {
  if (!module) throw UsageError("there is no module to train");
  if (!world.valid()) throw UsageError("the communicator was moved away");
  validate(options.algorithm);
  validate(options.compression);
  if (options.logical_shards < 0 || (options.logical_shards > 0 && options.logical_shards < world.size())) {
    throw UsageError(fmt::format("logical_shards: expected at least one for each of {} ranks, found {}", world.size(),
                                 options.logical_shards));
  }
  const bool is_compressed = !std::holds_alternative<NoCompression>(options.compression);
  if (options.hook && is_compressed) throw UsageError("hook: takes the place of a compression; there are both");
  if (options.logical_shards > 0 && (is_compressed || options.hook))
    throw UsageError(
        "logical_shards: the same bits on any number of ranks need gradients as they are, without compression or hook");
  shards = options.logical_shards == 0 ? world.size() : options.logical_shards;
  if (options.sync_batch_norm && shards != world.size())
    throw UsageError(
        fmt::format("sync_batch_norm: all shards must be computed at the same time, and {} shards are for {} ranks",
                    shards, world.size()));
  buffers_mode = options.buffers.value_or(options.logical_shards == 0 ? Buffers::follow_first : Buffers::per_shard);
  set_up_blas();
  keep_freed_memory();
  module_parameters = detail::parameters_of(*module);
  for (const ModuleParameter& one : module_parameters) {
    if (one.variables.size() > 1) {
      throw UsageError(
          fmt::format("the parameters '{}' share memory, and not a tensor; tie them by assigning one to the other",
                      fmt::join(one.names, "' and '")));
    }
    Parameter& parameter = parameters.emplace_back();
    parameter.name = one.name();
    parameter.variable = one.tensor();
    parameter.type = detail::data_type_of_parameter(one.name(), one.tensor());
  }
  detail::refuse_other_modules(world, *module);
  share_state(Rank{0});
  buffers.emplace(*module, shards, buffers_mode);
  if (options.sync_batch_norm) norm_world.emplace(world.split({}));
  if (is_compressed) {
    compressor.emplace(options.compression,
                       GradientCompressorOptions{.algorithm = options.algorithm, .seed = options.seed});
  }
  // Those of the last layers are ready first.
  order.resize(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0u);
  lay_out_buckets();
  link->inside = this;
  install_hooks();
  thread = std::thread([this] { serve(); });
}

DistributedModule::Inside::~Inside() {
  link->inside = nullptr;
  {
    const std::lock_guard lock(state);
    ended = true;
  }
  changed.notify_all();
  if (thread.joinable()) thread.join();
}

void DistributedModule::Inside::share_state(Rank root) {
  for (const Parameter& parameter : parameters) detail::broadcast_tensor(world, parameter.variable, root);
  for (const torch::Tensor& buffer : module->buffers()) detail::broadcast_tensor(world, buffer, root);
}

void DistributedModule::Inside::lay_out_buckets() {
  std::vector<BucketItem> items;
  for (const Parameter& one : parameters) items.push_back({static_cast<std::size_t>(one.variable.numel()), one.type});
  buckets.clear();
  for (std::vector<std::size_t>& its :
       plan_buckets(items, order, {.first = options.first_bucket_size, .size = options.bucket_size})) {
    std::vector<NamedShape> shapes;
    std::int64_t length = 0;
    for (std::size_t i : its) {
      shapes.push_back({parameters[i].name, parameters[i].variable.sizes().vec()});
      length += parameters[i].variable.numel();
    }
    const DataType type = items[its.front()].type;
    torch::Tensor memory = torch::zeros({length}, parameters[its.front()].variable.options().requires_grad(false));
    const Array array(memory.data_ptr(), static_cast<std::size_t>(length), type);
    buckets.push_back({std::move(its), std::move(memory), GradientBuffers(std::move(shapes), array)});
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t k = 0; k < buckets[b].parameters.size(); ++k) {
      Parameter& parameter = parameters[buckets[b].parameters[k]];
      parameter.bucket = b;
      parameter.place = buckets[b].gradients[k];
      parameter.view =
          buckets[b].memory.as_strided(parameter.variable.sizes(), parameter.variable.strides(),
                                       static_cast<std::int64_t>(buckets[b].gradients.pieces()[k].slice.first));
    }
  }
}

// Also for those that were frozen before.
void DistributedModule::Inside::install_hooks() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    if (parameter.accumulator || !parameter.variable.requires_grad()) continue;
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.variable);
    parameter.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak = std::weak_ptr<Link>(link), i](const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) {
          const std::shared_ptr<Link> alive = weak.lock();
          if (alive && alive->inside != nullptr) alive->inside->on_gradient(i);
          return outputs;
        }));
  }
}

void DistributedModule::Inside::begin_round(std::vector<ShardLoss> its_losses, bool its_active) {
  if (broken) throw PeerError(*broken);
  losses = std::move(its_losses);
  is_active = its_active;
  ready_order.clear();
  for (Parameter& parameter : parameters) parameter.is_ready = parameter.is_used = false;
  for (Bucket& bucket : buckets) bucket.pending = bucket.parameters.size();
  const std::lock_guard exchange_lock(exchanging);
  has_header = false;
  next_bucket = 0;
  error = nullptr;
  has_error = false;
  not_finite.clear();
  const std::lock_guard lock(state);
  ready_buckets = 0;
  is_open = true;
}

void DistributedModule::Inside::on_gradient(std::size_t index) {
  if (unsynced > 0) return;
  if (!is_open) {
    refuse_shards_own_buffers();
    begin_round(only({.loss = 0, .weight = 1}), true);
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      keep_buffers();
      finish_round(false);
    });
  }
  Parameter& parameter = parameters[index];
  if (parameter.is_ready) {
    throw UsageError(
        fmt::format("the gradient of '{}' came twice in one backward pass; call model.backward(loss) where backward "
                    "passes nest",
                    parameter.name));
  }
  tell({.kind = BucketEvent::Kind::gradient_ready, .parameter = parameter.name, .bucket = parameter.bucket});
  put_in_place(parameter);
  ready_order.push_back(index);
  mark_ready(index);
}

// What has accumulated becomes this rank's part of the bucket.
void DistributedModule::Inside::put_in_place(Parameter& parameter) {
  const torch::Tensor gradient = parameter.variable.grad();
  parameter.is_used = true;
  if (gradient.is_sparse()) {
    throw UsageError(
        fmt::format("the gradient of '{}' is sparse; tutti trains with dense ones (sparse(false))", parameter.name));
  }
  if (gradient.data_ptr() == parameter.place.data()) return;
  if (gradient.strides() == parameter.view.strides() && gradient.scalar_type() == parameter.view.scalar_type()) {
    std::memcpy(parameter.place.data(), gradient.data_ptr(), parameter.place.bytes());
  } else {
    parameter.view.copy_(gradient.detach());
  }
}

void DistributedModule::Inside::mark_ready(std::size_t index) {
  parameters[index].is_ready = true;
  Bucket& bucket = buckets[parameters[index].bucket];
  if (--bucket.pending > 0) return;
  bool has_work = false;
  {
    const std::lock_guard lock(state);
    const std::size_t before = ready_buckets;
    while (ready_buckets < buckets.size() && buckets[ready_buckets].pending == 0) ++ready_buckets;
    // The last bucket is exchanged by whoever waits for it.
    has_work = ready_buckets > before && ready_buckets < buckets.size();
  }
  if (has_work) changed.notify_one();
}

// The thread that exchanges buckets while backward goes on.
void DistributedModule::Inside::serve() {
  detail::use_one_thread();
  for (;;) {
    {
      std::unique_lock lock(state);
      changed.wait(lock, [&] {
        return ended || (is_open && !has_error && next_bucket < ready_buckets && ready_buckets < buckets.size());
      });
      if (ended) return;
    }
    run_ready();
  }
}

// In order, whatever is ready; called by both threads.
void DistributedModule::Inside::run_ready() {
  const std::lock_guard lock(exchanging);
  for (;;) {
    {
      const std::lock_guard state_lock(state);
      if (!is_open || has_error || next_bucket >= ready_buckets) return;
    }
    try {
      if (!has_header) exchange_header();
      exchange_bucket(next_bucket);
    } catch (...) {
      error = std::current_exception();
      has_error = true;
      return;
    }
    ++next_bucket;
  }
}

// Weights and losses by shard, so that their sums have one order whoever computed which.
void DistributedModule::Inside::exchange_header() {
  const auto count = static_cast<std::size_t>(shards);
  std::vector<double> header(2 * count + static_cast<std::size_t>(world.size()));
  for (std::size_t s = 0; s < count; ++s) {
    header[s] = losses[s].weight;
    header[count + s] = losses[s].weight * losses[s].loss;
  }
  header[2 * count + static_cast<std::size_t>(world.rank().value)] = is_active ? 1 : 0;
  all_reduce(world, header);
  has_header = true;
  report = {};
  for (std::size_t s = 0; s < count; ++s) {
    report.weight += header[s];
    report.loss += header[count + s];
  }
  total_weight = report.weight;
  if (total_weight > 0) report.loss /= total_weight;
  actives.clear();
  for (std::size_t r = 2 * count; r < header.size(); ++r) actives.push_back(header[r] > 0);
  const auto first = std::ranges::find(actives, true);
  if (first != actives.end()) last_active = Rank{static_cast<int>(first - actives.begin())};
}

void DistributedModule::Inside::exchange_bucket(std::size_t index) {
  Bucket& bucket = buckets[index];
  tell({.kind = BucketEvent::Kind::bucket_started, .bucket = index});
  const auto ranks = static_cast<double>(world.size());
  if (shard_gradients != nullptr) {
    exchange_parts(bucket);
    scale(bucket, 1 / total_weight);
  } else if (options.hook || compressor) {
    if (options.hook) {
      options.hook(world, bucket.gradients);
    } else {
      compressor->mean(world, bucket.gradients);
    }
    scale(bucket, ranks / total_weight);
  } else if (total_weight == ranks) {
    all_reduce(world, bucket.gradients.all(), {.algorithm = options.algorithm, .op = ReduceOp::mean});
  } else {
    all_reduce(world, bucket.gradients.all(), {.algorithm = options.algorithm, .op = ReduceOp::sum});
    scale(bucket, 1 / total_weight);
  }
  if (options.refuse_nan && not_finite.empty()) look_at(bucket);
  tell({.kind = BucketEvent::Kind::bucket_done, .bucket = index});
}

void DistributedModule::Inside::scale(Bucket& bucket, double factor) const {
  if (factor == 1 || !std::isfinite(factor)) return;
  bucket.memory.mul_(factor);
}

void DistributedModule::Inside::look_at(const Bucket& bucket) {
  const Array all = bucket.gradients.all();
  if (all_finite(all.type(), all.data(), all.length())) return;
  for (std::size_t i : bucket.parameters) {
    const Parameter& parameter = parameters[i];
    if (!all_finite(parameter.type, parameter.place.data(), parameter.place.length())) {
      not_finite = parameter.name;
      return;
    }
  }
}

// Each rank's parts of the bucket, folded along the tree over all shards.
void DistributedModule::Inside::exchange_parts(Bucket& bucket) {
  const Array all = bucket.gradients.all();
  const std::size_t bytes = all.bytes();
  // What is not there must not change a sum, not even the sign of a zero.
  const auto fill = [&](std::byte* memory, std::size_t part) {
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const Slice slice = bucket.gradients.pieces()[k].slice;
      std::byte* to = memory + slice.first * size_of(all.type());
      const torch::Tensor gradient = part < shard_gradients->part_count()
                                         ? shard_gradients->gradient(part, bucket.parameters[k])
                                         : torch::Tensor();
      if (gradient.defined()) {
        std::memcpy(to, gradient.data_ptr(), slice.count * size_of(all.type()));
      } else if (all.type() == DataType::float64) {
        std::fill_n(reinterpret_cast<double*>(to), slice.count, -0.0);
      } else {
        std::fill_n(reinterpret_cast<float*>(to), slice.count, -0.0f);
      }
    }
  };
  std::vector<ShardPart> parts;
  std::size_t most = 0;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Slice own = chunk(static_cast<std::size_t>(shards), world.size(), rank);
    const std::vector<ShardPart> its =
        parts_of_shards(shards, static_cast<int>(own.first), static_cast<int>(own.count));
    counts.push_back(its.size());
    most = std::max(most, its.size());
    parts.insert(parts.end(), its.begin(), its.end());
  }
  if (most == 1 && is_tree_over_parts(shards, parts)) {
    fill(all.data(), 0);
    return all_reduce(world, all, {.algorithm = options.algorithm, .op = ReduceOp::sum, .reproducible = true});
  }
  std::vector<std::byte> mine(most * bytes);
  for (std::size_t part = 0; part < most; ++part) fill(mine.data() + part * bytes, part);
  std::vector<std::byte> gathered(mine.size() * static_cast<std::size_t>(world.size()));
  all_gather(world, ConstArray(mine.data(), most * all.length(), all.type()),
             Array(gathered.data(), most * all.length() * static_cast<std::size_t>(world.size()), all.type()));
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::size_t part = 0; part < counts[rank]; ++part)
      parts[next++].data = gathered.data() + (rank * most + part) * bytes;
  }
  fold_shards(all.type(), shards, parts, all.data(), all.length());
}

void DistributedModule::Inside::exchange_tail(bool failed) {
  std::vector<std::int64_t> tail(static_cast<std::size_t>(world.size()) + parameters.size());
  tail[static_cast<std::size_t>(world.rank().value)] = failed ? 1 : 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    tail[static_cast<std::size_t>(world.size()) + i] = parameters[i].is_used ? 1 : 0;
  all_reduce(world, tail);
  uses.assign(tail.begin() + world.size(), tail.end());
  std::vector<Rank> ranks;
  for (Rank rank : all_ranks(world.size())) {
    if (tail[static_cast<std::size_t>(rank.value)] != 0) ranks.push_back(rank);
  }
  if (!has_agreed_on_order) agree_on_order();
  if (!ranks.empty()) {
    throw PeerError(
        {FailureKind::disagreement, ranks,
         fmt::format("the backward pass failed on {}; the round is as if it had not been", to_string(ranks))});
  }
}

// That in which rank 0's gradients became ready, then those that did not.
void DistributedModule::Inside::agree_on_order() {
  std::vector<std::int64_t> its;
  for (std::size_t i : ready_order) its.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i : order) {
    if (std::ranges::find(ready_order, i) == ready_order.end()) its.push_back(static_cast<std::int64_t>(i));
  }
  broadcast(world, its);
  has_agreed_on_order = true;
  order.assign(its.begin(), its.end());
}

void DistributedModule::Inside::finish_round(bool failed) {
  const bool reorders = !has_agreed_on_order;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    if (parameter.is_ready) continue;
    const bool has_no_hook = !parameter.accumulator && parameter.variable.requires_grad();
    if (!failed && has_no_hook && parameter.variable.grad().defined()) {
      put_in_place(parameter);
    } else if (parameter.place.bytes() > 0) {
      std::memset(parameter.place.data(), 0, parameter.place.bytes());
    }
    mark_ready(i);
  }
  run_ready();
  std::exception_ptr failure;
  {
    const std::lock_guard lock(exchanging);
    try {
      if (error) std::rethrow_exception(error);
      if (!has_header) exchange_header();  // a module without parameters that are trained
      exchange_tail(failed);
      buffers->finish(*module, world);
    } catch (const PeerError& peer) {
      if (!peer.communicator_usable()) broken = peer.failure();
      failure = std::current_exception();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard state_lock(state);
    is_open = false;
  }
  install_hooks();
  unsynced_weight = 0;
  if (!failure && !not_finite.empty()) {
    failure = std::make_exception_ptr(UsageError(fmt::format(
        "the gradient of '{}' is not finite (NaN or infinite) on some rank; no rank has gradients now", not_finite)));
  }
  if (!failure && !(total_weight > 0) && std::ranges::find(actives, true) != actives.end())
    failure =
        std::make_exception_ptr(UsageError("the losses of all ranks weigh nothing together, so they have no mean"));
  if (failure) {
    for (const Parameter& parameter : parameters) parameter.variable.mutable_grad() = torch::Tensor();
    if (reorders && has_agreed_on_order) lay_out_buckets();
    std::rethrow_exception(failure);
  }
  set_gradients();
  ++step_number;
  if (reorders) lay_out_buckets();
}

void DistributedModule::Inside::set_gradients() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (uses[i] > 0) {
      if (!parameter.variable.grad().is_same(parameter.view)) parameter.variable.mutable_grad() = parameter.view;
    } else {
      parameter.variable.mutable_grad() = torch::Tensor();
      if (parameter.variable.requires_grad()) report.unused.push_back(parameter.name);
    }
  }
}

void DistributedModule::Inside::take_part_with_nothing() {
  buffers->forget();
  begin_round(only({}), false);
  finish_round(false);
}

template <typename Backward>
void DistributedModule::Inside::run_backward(Backward backward) {
  try {
    backward();
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    try {
      finish_round(true);
    } catch (const Error&) {
      // That this rank has failed, which its caller hears from the very error.
    }
    std::rethrow_exception(thrown);
  }
}

double DistributedModule::Inside::backward_one_shard(std::int64_t rows,
                                                     const std::function<WeightedLoss(const Rows&)>& its_loss) {
  const int shard = world.rank().value;
  const Rows mine = rows_of(shard, rows);
  const RandomDraws draws({.seed = options.seed, .step = step_number, .shard = static_cast<std::uint64_t>(shard)});
  std::optional<SyncBatchNorm> norm;
  if (norm_world) norm.emplace(*norm_world);
  detail::discard_gradients(module_parameters);
  buffers->begin(*module);
  std::optional<WeightedLoss> computed;
  ShardLoss weighed;
  if (mine.count > 0) {
    try {
      buffers->take(shard, *module);
      const detail::Autocast autocast(options.autocast);
      computed.emplace(its_loss(mine));
      weighed = detail::weigh(*computed, shard, mine.count);
      buffers->keep(shard, *module);
    } catch (...) {
      begin_round(only({}), true);
      run_backward([] { throw; });
    }
  }
  begin_round(only(weighed), true);
  run_backward([&] {
    // Where batch norm takes all rows together, those of others depend on rows that weigh nothing.
    if (weighed.weight > 0 || (norm_world && computed && computed->loss.requires_grad()))
      detail::backward(*computed, weighed.weight);
  });
  finish_round(false);
  return report.loss;
}

double DistributedModule::Inside::backward_shards(std::int64_t rows,
                                                  const std::function<WeightedLoss(const Rows&)>& its_loss) {
  ShardGradients mine(shards);
  std::vector<ShardLoss> its_losses(static_cast<std::size_t>(shards));
  buffers->begin(*module);
  ++unsynced;  // gradients are taken from here, shard by shard
  try {
    const Slice own = chunk(its_losses.size(), world.size(), world.rank().value);
    for (std::size_t s = own.first; s < own.end(); ++s) {
      const int shard = static_cast<int>(s);
      const Rows its_rows = rows_of(shard, rows);
      detail::discard_gradients(module_parameters);
      if (its_rows.count > 0) {
        const RandomDraws draws({.seed = options.seed, .step = step_number, .shard = s});
        buffers->take(shard, *module);
        const WeightedLoss computed = [&] {
          const detail::Autocast autocast(options.autocast);
          return its_loss(its_rows);
        }();
        its_losses[s] = detail::weigh(computed, shard, its_rows.count);
        if (its_losses[s].weight > 0) detail::backward(computed, its_losses[s].weight);
        buffers->keep(shard, *module);
      }
      mine.add(shard,
               its_losses[s].weight > 0 ? detail::take_gradients(module_parameters) : std::vector<torch::Tensor>());
    }
  } catch (...) {
    --unsynced;
    begin_round(only({}), true);
    run_backward([] { throw; });
  }
  --unsynced;
  begin_round(std::move(its_losses), true);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].is_used = mine.first_of(i).defined();
  shard_gradients = &mine;
  try {
    finish_round(false);
  } catch (...) {
    shard_gradients = nullptr;
    throw;
  }
  shard_gradients = nullptr;
  return report.loss;
}

// --- what users call ---

DistributedModule::DistributedModule(std::shared_ptr<torch::nn::Module> module, Communicator world,
                                     const DistributedOptions& options)
    : inside_(std::make_unique<Inside>(std::move(module), std::move(world), options)) {}

DistributedModule::~DistributedModule() = default;

void DistributedModule::backward(const torch::Tensor& loss, std::optional<double> weight) {
  const WeightedLoss weighted(loss, weight.value_or(1));
  const detail::OneThread one_thread;
  const ShardLoss weighed = detail::weigh(weighted, inside_->world.rank().value, 1);
  if (inside_->unsynced > 0) {
    if (weighed.weight > 0) detail::backward(weighted, weighed.weight);
    if (weight) inside_->unsynced_weight += *weight;
    return;
  }
  inside_->refuse_shards_own_buffers();
  inside_->keep_buffers();
  inside_->begin_round(inside_->only({weighed.loss, weighed.weight + inside_->unsynced_weight}), true);
  inside_->run_backward([&] {
    if (weighed.weight > 0) detail::backward(weighted, weighed.weight);
  });
  inside_->finish_round(false);
}

double DistributedModule::backward_rows(std::int64_t rows, const std::function<WeightedLoss(const Rows&)>& loss) {
  if (rows < 1) throw UsageError("a batch without rows has no loss");
  if (inside_->unsynced > 0)
    throw UsageError("no_sync: a batch that all ranks have is synchronised when it is computed");
  if (inside_->options.sync_batch_norm && rows < inside_->shards) {
    throw UsageError(fmt::format("sync_batch_norm: every rank needs a row, found {} rows for {} ranks", rows, size()));
  }
  const detail::OneThread one_thread;
  return inside_->options.logical_shards > 0 ? inside_->backward_shards(rows, loss)
                                             : inside_->backward_one_shard(rows, loss);
}

void DistributedModule::step(torch::optim::Optimizer& optimizer) {
  const detail::OneThread one_thread;
  detail::step(optimizer);
}

void DistributedModule::count_unsynced(int change) { inside_->unsynced += change; }

void DistributedModule::join() {
  do {
    inside_->take_part_with_nothing();
  } while (std::ranges::find(inside_->actives, true) != inside_->actives.end());
  // All have seen the same rounds, so all know the same one.
  inside_->share_state(inside_->last_active);
  inside_->buffers->begin(*inside_->module);
}

void DistributedModule::rebuild(std::span<const Rank> survivors) {
  inside_->world = inside_->world.rebuild(survivors);
  inside_->broken.reset();
  if (inside_->options.logical_shards == 0) inside_->shards = inside_->world.size();
  inside_->share_state(Rank{0});
  inside_->buffers.emplace(*inside_->module, inside_->shards, inside_->buffers_mode);
  if (inside_->norm_world) inside_->norm_world.emplace(inside_->world.split({}));
}

Rank DistributedModule::rank() const { return inside_->world.rank(); }
int DistributedModule::size() const { return inside_->world.size(); }
const RoundReport& DistributedModule::report() const { return inside_->report; }
Communicator& DistributedModule::world() { return inside_->world; }

CompressionTally DistributedModule::compression_tally() const {
  return inside_->compressor ? inside_->compressor->tally() : CompressionTally{inside_->options.compression, {}, {}};
}

std::string DistributedModule::describe() const {
  const Inside& in = *inside_;
  std::string text = fmt::format("{} of {}; {} gradients in {} buckets", to_string(in.world.rank()), in.world.size(),
                                 in.parameters.size(), in.buckets.size());
  if (in.options.hook) {
    text += ", exchanged by the hook";
  } else if (in.compressor) {
    text += fmt::format(", compressed by {}, all-reduced by {}", to_string(in.options.compression),
                        to_string(in.options.algorithm));
  } else {
    text += fmt::format(", all-reduced by {}", to_string(in.options.algorithm));
  }
  if (in.options.logical_shards > 0)
    text += fmt::format("; {} logical shards, the same bits on any number of ranks", in.shards);
  return text + (in.buckets.size() > 1 ? ", while backward goes on" : "");
}

}  // namespace tutti
