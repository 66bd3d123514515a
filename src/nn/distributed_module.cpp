#include <tutti/nn/distributed_module.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <tutti/base/chunk.hpp>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/sync_batch_norm.hpp>
#include <tutti/sync/slice_plan.hpp>

#include "gradient_buckets.hpp"
#include "kernel_optimizer.hpp"
#include "module_agreement.hpp"
#include "module_parameters.hpp"
#include "shard_buffers.hpp"
#include "shard_exchange.hpp"
#include "shard_gradients.hpp"
#include "thread_settings.hpp"

namespace tutti {
using detail::GradientBucket;
using detail::GradientBuckets;
using detail::GradientPlace;
using detail::ModuleParameter;
using detail::ShardGradients;
using detail::ShardLoss;

struct DistributedModule::Inside {
  // What hooks hold on to, which may outlive this.
  struct Link {
    Inside* inside = nullptr;
  };

  // A round that the hooks began in a backward pass of the caller's. libtorch calls nobody back where the pass throws,
  // but lets go of what would have been called.
  struct CallersPass {
    CallersPass(std::weak_ptr<Link> its_link) : link(std::move(its_link)) {}
    ~CallersPass() {
      const std::shared_ptr<Link> alive = link.lock();
      if (!went_well && alive && alive->inside != nullptr) alive->inside->is_abandoned = true;
    }
    CallersPass(const CallersPass&) = delete;
    CallersPass& operator=(const CallersPass&) = delete;

    std::weak_ptr<Link> link;
    bool went_well = false;
  };

  enum class Pass : std::uint8_t {
    went_well,
    threw,
    was_cut_off,  // in a batch norm over all ranks, by one that threw or has no more batches
  };

  // What a rank does in a round, as the others hear of it first.
  enum class Part : std::uint8_t {
    nothing,      // it has no more batches
    own_loss,     // backward(loss)
    whole_batch,  // backward(batch, closure), with logical shards
  };

  struct Parameter {
    std::string name;
    torch::Tensor variable;
    std::shared_ptr<torch::autograd::Node> accumulator;  // null while it is frozen
    bool is_ready = false;
    bool is_used = false;
  };

  Inside(std::shared_ptr<torch::nn::Module> its_module, Communicator its_world, const DistributedOptions& its_options);
  ~Inside();

  void share_state(Rank root, torch::optim::Optimizer* optimizer);
  std::vector<detail::AgreedOption> agreed_options() const;
  void lay_out_buckets() {
    buckets =
        GradientBuckets(module_parameters, order, {.first = options.first_bucket_size, .size = options.bucket_size});
    pending.resize(buckets.size());
  }
  // Their gradients are ready first.
  void begin_with_the_last_layers() {
    order.resize(parameters.size());
    std::iota(order.rbegin(), order.rend(), 0u);
    lay_out_buckets();
  }
  void install_hooks();

  // --- a round ---
  // With the losses of this rank's shards; all others' are 0.
  void begin_round(std::vector<ShardLoss> its_losses, Part its_part);
  void begin_callers_pass();
  void end_abandoned_round();
  // Rethrows: what this rank threw, or where that was only a consequence, who threw.
  [[noreturn]] void fail_with_others(Part its_part, const std::exception_ptr& thrown);
  void refuse_if_broken() const;
  void close_round();
  std::vector<ShardLoss> only(const ShardLoss& mine) const {
    std::vector<ShardLoss> all(static_cast<std::size_t>(shards));
    all[static_cast<std::size_t>(world.rank().value)] = mine;
    return all;
  }
  void on_gradient(std::size_t index);
  void put_in_place(std::size_t index);
  void mark_ready(std::size_t index);
  void finish_round(Pass pass);
  std::exception_ptr fill_what_is_missing(Pass pass);
  void make_means();
  void refuse_what_came_out() const;
  double norm_of_gradients();
  void keep_what_counts();
  void run_ready();
  void exchange_header();
  void exchange_bucket(std::size_t index);
  void run_hook(GradientBucket& bucket);
  void fail_for_all(const char* why) {
    if (broken) return;
    broken = Failure{FailureKind::lost, {world.rank()}, fmt::format("{} on {}", why, to_string(world.rank()))};
    world.cancel(why);
  }
  void exchange_tail(Pass pass);
  void agree_on_order();
  void set_gradients();
  static void scale(const GradientBucket& bucket, double by);
  void look_at(const GradientBucket& bucket);
  void tell(const BucketEvent& event) const {
    if (options.on_event) options.on_event(event);
  }
  // The same while the others wait.
  void tell_in_exchange(const BucketEvent& event);
  void serve();

  void take_part_with_nothing();
  // Of a forward pass that the caller made.
  void keep_buffers() {
    buffers->forget();
    buffers->keep(world.rank().value, *module);
  }
  // What would have to be in place before that pass.
  void refuse_what_needs_the_closure() const {
    if (buffers_mode == Buffers::per_shard) {
      throw UsageError(
          "buffers: each shard's own are only in place while backward(batch, closure) computes it; take follow_first "
          "or averaged");
    }
    for (const auto& [option, is_set] :
         {std::pair("sync_batch_norm", options.sync_batch_norm), std::pair("autocast", options.autocast)}) {
      if (is_set)
        throw UsageError(fmt::format("{}: is for backward(batch, closure), which makes the forward pass", option));
    }
  }
  Part closure_part() const { return options.logical_shards > 0 ? Part::whole_batch : Part::own_loss; }
  // Runs a backward pass; where that throws, the others hear of it and what it threw goes on.
  template <typename Backward>
  void run_backward(Backward backward);
  void backward_unsynced(const torch::Tensor& loss, std::optional<double> weight);
  void backward_own_loss(const torch::Tensor& loss, std::optional<double> weight);
  double backward_one_shard(std::int64_t rows, const std::function<WeightedLoss(const Rows&)>& loss);
  double backward_shards(std::int64_t rows, const std::function<WeightedLoss(const Rows&)>& loss);

  std::shared_ptr<torch::nn::Module> module;
  Communicator world;
  std::optional<Communicator> norm_world;
  DistributedOptions options;
  int shards = 1;
  Buffers buffers_mode = Buffers::follow_first;
  std::vector<ModuleParameter> module_parameters;
  std::vector<Parameter> parameters;
  std::vector<std::size_t> order;  // of parameters, in buckets
  GradientBuckets buckets;         // gradients that the module holds are views of their memory
  std::optional<detail::ShardBuffers> buffers;
  std::optional<GradientCompressor> compressor;
  std::shared_ptr<Link> link = std::make_shared<Link>();
  int unsynced = 0;
  // Of passes under no_sync since the last round.
  bool has_unsynced = false;
  double unsynced_weight = 0;
  double unsynced_loss = 0;  // times its weight
  std::uint64_t step_number = 0;
  bool has_agreed_on_order = false;
  std::optional<Failure> broken;

  // The round in progress. `state` guards what the two threads tell each other, `exchanging` the communicator.
  bool is_open = false;
  bool is_abandoned = false;
  std::vector<ShardLoss> losses;  // by shard; of others 0
  Part part = Part::own_loss;
  std::vector<std::size_t> ready_order;
  std::vector<std::size_t> pending;  // by bucket: of how many parameters there is no gradient yet
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
  double factor = 1;  // that makes means of the buckets' contents
  bool is_of_shards = false;
  bool has_tail = false;  // all ranks know how the round ends
  bool has_somebody_thrown = false;
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
  if (!(options.clip_norm >= 0) || !std::isfinite(options.clip_norm))
    throw UsageError(fmt::format("clip_norm: expected a number from 0 on, found {}", options.clip_norm));
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
    detail::refuse_aliases(one);
    Parameter& parameter = parameters.emplace_back();
    parameter.name = one.name();
    parameter.variable = one.tensor();
    detail::data_type_of_parameter(one.name(), one.tensor());  // or it is refused
  }
  detail::refuse_other_modules(world, *module, agreed_options());
  share_state(Rank{0}, nullptr);
  buffers.emplace(*module, shards, buffers_mode);
  if (options.sync_batch_norm) norm_world.emplace(world.split({}));
  if (is_compressed) {
    compressor.emplace(options.compression,
                       GradientCompressorOptions{.algorithm = options.algorithm, .seed = options.seed});
  }
  begin_with_the_last_layers();
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

void DistributedModule::Inside::share_state(Rank root, torch::optim::Optimizer* optimizer) {
  for (const Parameter& parameter : parameters) detail::broadcast_tensor(world, parameter.variable, root);
  for (const torch::Tensor& buffer : module->buffers()) detail::broadcast_tensor(world, buffer, root);
  std::vector<std::int64_t> steps{static_cast<std::int64_t>(step_number)};
  broadcast(world, steps, {.root = root});
  step_number = static_cast<std::uint64_t>(steps.front());
  if (optimizer != nullptr) detail::broadcast_optimizer(world, *optimizer, root);
}

// What changes which calls a rank makes, or what it makes of them.
std::vector<detail::AgreedOption> DistributedModule::Inside::agreed_options() const {
  return {{"bucket_size", to_string(options.bucket_size)},
          {"first_bucket_size", to_string(options.first_bucket_size)},
          {"algorithm", to_string(options.algorithm)},
          {"compression", to_string(options.compression)},
          {"hook", options.hook ? "set" : "not set"},
          {"logical_shards", std::to_string(options.logical_shards)},
          {"buffers", std::to_string(static_cast<int>(buffers_mode))},
          {"sync_batch_norm", options.sync_batch_norm ? "true" : "false"},
          {"clip_norm", fmt::format("{}", options.clip_norm)},
          {"refuse_nan", options.refuse_nan ? "true" : "false"},
          {"autocast", options.autocast ? "true" : "false"},
          {"seed", std::to_string(options.seed)}};
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

void DistributedModule::Inside::begin_round(std::vector<ShardLoss> its_losses, Part its_part) {
  if (broken) throw PeerError(*broken);
  losses = std::move(its_losses);
  part = its_part;
  ready_order.clear();
  for (Parameter& parameter : parameters) parameter.is_ready = parameter.is_used = false;
  for (std::size_t b = 0; b < buckets.size(); ++b) pending[b] = buckets[b].parameters.size();
  const std::lock_guard exchange_lock(exchanging);
  has_header = false;
  next_bucket = 0;
  error = nullptr;
  has_error = false;
  not_finite.clear();
  has_tail = has_somebody_thrown = false;
  const std::lock_guard lock(state);
  ready_buckets = 0;
  is_open = true;
}

void DistributedModule::Inside::begin_callers_pass() {
  refuse_what_needs_the_closure();
  const double weight = 1 + unsynced_weight;
  begin_round(only({.loss = 0, .weight = weight}), Part::own_loss);
  const auto callers = std::make_shared<CallersPass>(link);
  torch::autograd::Engine::get_default_engine().queue_callback([this, callers] {
    callers->went_well = true;
    keep_buffers();
    finish_round(Pass::went_well);
  });
}

void DistributedModule::Inside::end_abandoned_round() {
  if (!is_open || !std::exchange(is_abandoned, false)) return;
  try {
    finish_round(Pass::threw);
  } catch (...) {
    // That this rank has failed, which its caller has heard already.
  }
}

void DistributedModule::Inside::fail_with_others(Part its_part, const std::exception_ptr& thrown) {
  bool is_consequence = false;
  if (norm_world) {
    try {
      std::rethrow_exception(thrown);
    } catch (const PeerError&) {
      is_consequence = norm_world->broken();
    } catch (...) {
    }
    if (!is_consequence) norm_world->cancel("a rank's pass failed");
  }
  try {
    if (!is_open) begin_round(only({}), its_part);
    finish_round(is_consequence ? Pass::was_cut_off : Pass::threw);
  } catch (...) {
    if (is_consequence && has_somebody_thrown) throw;
  }
  std::rethrow_exception(thrown);
}

// Buffers may be of a forward pass that comes to nothing.
void DistributedModule::Inside::refuse_if_broken() const {
  if (!broken) return;
  buffers->undo(*module);
  throw PeerError(*broken);
}

void DistributedModule::Inside::close_round() {
  const std::lock_guard exchange_lock(exchanging);
  const std::lock_guard lock(state);
  is_open = false;
  is_abandoned = false;
}

void DistributedModule::Inside::tell_in_exchange(const BucketEvent& event) {
  try {
    tell(event);
  } catch (...) {
    fail_for_all("what this rank is told to call in a round threw");
    throw;
  }
}

void DistributedModule::Inside::on_gradient(std::size_t index) {
  if (unsynced > 0) {
    has_unsynced = true;
    return;
  }
  if (is_open && is_abandoned) {
    // It takes all gradients away, and this one is of the pass that goes on.
    const torch::Tensor gradient = parameters[index].variable.grad().detach().clone();
    end_abandoned_round();
    parameters[index].variable.mutable_grad() = gradient;
  }
  if (!is_open) begin_callers_pass();
  Parameter& parameter = parameters[index];
  if (parameter.is_ready) {
    throw UsageError(
        fmt::format("the gradient of '{}' came twice in one backward pass; call model.backward(loss) where backward "
                    "passes nest",
                    parameter.name));
  }
  tell({.kind = BucketEvent::Kind::gradient_ready,
        .parameter = parameter.name,
        .bucket = buckets.place_of(index).bucket});
  put_in_place(index);
  ready_order.push_back(index);
  mark_ready(index);
}

// What has accumulated becomes this rank's part of the bucket.
void DistributedModule::Inside::put_in_place(std::size_t index) {
  Parameter& parameter = parameters[index];
  const GradientPlace& place = buckets.place_of(index);
  const torch::Tensor gradient = parameter.variable.grad();
  parameter.is_used = true;
  if (gradient.is_sparse()) {
    throw UsageError(
        fmt::format("the gradient of '{}' is sparse; tutti trains with dense ones (sparse(false))", parameter.name));
  }
  if (gradient.data_ptr() == place.array.data()) return;
  if (gradient.strides() == place.view.strides() && gradient.scalar_type() == place.view.scalar_type()) {
    std::memcpy(place.array.data(), gradient.data_ptr(), place.array.bytes());
  } else {
    place.view.copy_(gradient.detach());
  }
}

void DistributedModule::Inside::mark_ready(std::size_t index) {
  parameters[index].is_ready = true;
  if (--pending[buckets.place_of(index).bucket] > 0) return;
  bool has_work = false;
  {
    const std::lock_guard lock(state);
    const std::size_t before = ready_buckets;
    while (ready_buckets < buckets.size() && pending[ready_buckets] == 0) ++ready_buckets;
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
      error = std::current_exception();  // the others hear of it as well
      has_error = true;
      return;
    }
    ++next_bucket;
  }
}

// Weights and losses by shard, so that their sums have one order whoever computed which.
void DistributedModule::Inside::exchange_header() {
  const auto count = static_cast<std::size_t>(shards);
  std::vector<double> header(2 * count + static_cast<std::size_t>(world.size()));  // the last by rank: its part
  for (std::size_t s = 0; s < count; ++s) {
    header[s] = losses[s].weight;
    header[count + s] = losses[s].weight * losses[s].loss;
  }
  header[2 * count + static_cast<std::size_t>(world.rank().value)] = static_cast<double>(part);
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
  std::array<std::vector<Rank>, 3> by_part;
  for (Rank rank : all_ranks(world.size())) {
    const auto its = static_cast<std::size_t>(header[2 * count + static_cast<std::size_t>(rank.value)]);
    actives.push_back(its != static_cast<std::size_t>(Part::nothing));
    by_part[its].push_back(rank);
  }
  const auto first = std::ranges::find(actives, true);
  if (first != actives.end()) last_active = Rank{static_cast<int>(first - actives.begin())};
  const std::vector<Rank>& of_loss = by_part[static_cast<std::size_t>(Part::own_loss)];
  const std::vector<Rank>& of_shards = by_part[static_cast<std::size_t>(Part::whole_batch)];
  if (!of_loss.empty() && !of_shards.empty()) {
    throw PeerError({FailureKind::disagreement, of_loss,
                     fmt::format("{} called backward(loss), and {} backward(batch, closure) with logical shards",
                                 to_string(of_loss), to_string(of_shards))});
  }
  is_of_shards = !of_shards.empty();
}

// Of an error in somebody's own code the others hear at once: they cannot know how far it came.
void DistributedModule::Inside::run_hook(GradientBucket& bucket) {
  try {
    options.hook(world, bucket.gradients);
  } catch (...) {
    if (!world.broken()) fail_for_all("the communication hook threw");
    throw;
  }
}

void DistributedModule::Inside::exchange_bucket(std::size_t index) {
  GradientBucket& bucket = buckets[index];
  tell_in_exchange({.kind = BucketEvent::Kind::bucket_started, .bucket = index});
  const auto ranks = static_cast<double>(world.size());
  factor = 1 / total_weight;
  if (is_of_shards) {
    detail::sum_shards(world, shards, shard_gradients != nullptr ? *shard_gradients : ShardGradients(shards), bucket,
                       options.algorithm);
  } else if (options.hook || compressor) {
    // Before, so that what is kept for the next round is not weighed by the weights of this one.
    scale(bucket, ranks / total_weight);
    factor = 1;
    options.hook ? run_hook(bucket) : compressor->exchange(world, bucket.gradients);
  } else if (total_weight == ranks && options.clip_norm == 0) {
    factor = 1;
    all_reduce(world, bucket.gradients.all(), {.algorithm = options.algorithm, .op = ReduceOp::mean});
  } else {
    all_reduce(world, bucket.gradients.all(), {.algorithm = options.algorithm, .op = ReduceOp::sum});
  }
  // With a norm to keep to, all are scaled once when it is known: the same bits as DataParallel's.
  if (options.clip_norm == 0) {
    scale(bucket, factor);
    if (options.refuse_nan && not_finite.empty()) look_at(bucket);
  }
  tell_in_exchange({.kind = BucketEvent::Kind::bucket_done, .bucket = index});
}

void DistributedModule::Inside::scale(const GradientBucket& bucket, double by) {
  if (by == 1 || !std::isfinite(by)) return;
  bucket.memory.mul_(by);
}

void DistributedModule::Inside::look_at(const GradientBucket& bucket) {
  const Array all = bucket.gradients.all();
  if (all_finite(all.type(), all.data(), all.length())) return;
  for (std::size_t i : bucket.parameters) {
    const Array array = buckets.place_of(i).array;
    if (!all_finite(array.type(), array.data(), array.length())) {
      not_finite = parameters[i].name;
      return;
    }
  }
}

void DistributedModule::Inside::exchange_tail(Pass pass) {
  std::vector<std::int64_t> tail(static_cast<std::size_t>(world.size()) + parameters.size());
  tail[static_cast<std::size_t>(world.rank().value)] = static_cast<std::int64_t>(pass);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    tail[static_cast<std::size_t>(world.size()) + i] = parameters[i].is_used ? 1 : 0;
  all_reduce(world, tail);
  has_tail = true;
  uses.assign(tail.begin() + world.size(), tail.end());
  std::vector<Rank> threw;
  std::vector<Rank> cut_off;
  for (Rank rank : all_ranks(world.size())) {
    const auto its = static_cast<Pass>(tail[static_cast<std::size_t>(rank.value)]);
    if (its == Pass::threw) threw.push_back(rank);
    if (its == Pass::was_cut_off) cut_off.push_back(rank);
  }
  if (!has_agreed_on_order) agree_on_order();
  has_somebody_thrown = !threw.empty();
  if (has_somebody_thrown) {
    throw PeerError(
        {FailureKind::disagreement, threw,
         fmt::format("the backward pass failed on {}; the round is as if it had not been", to_string(threw))});
  }
  if (!cut_off.empty()) {
    throw PeerError(
        {FailureKind::disagreement, cut_off,
         fmt::format("{} waited in a batch norm over all ranks, and others have no more batches", to_string(cut_off))});
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

// What it cannot take is returned; the round goes on without.
std::exception_ptr DistributedModule::Inside::fill_what_is_missing(Pass pass) {
  std::exception_ptr refused;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (parameter.is_ready) continue;
    const bool has_no_hook = !parameter.accumulator && parameter.variable.requires_grad();
    const bool counts = has_no_hook || has_unsynced;  // of this pass, or of one before that was not synchronised
    bool is_in_place = false;
    if (pass == Pass::went_well && counts && parameter.variable.grad().defined()) {
      try {
        put_in_place(i);
        is_in_place = true;
      } catch (...) {
        refused = std::current_exception();
      }
    }
    const Array array = buckets.place_of(i).array;
    if (!is_in_place && array.bytes() > 0) std::memset(array.data(), 0, array.bytes());
    mark_ready(i);
  }
  return refused;
}

// Where the buckets hold sums yet.
void DistributedModule::Inside::make_means() {
  if (options.clip_norm == 0 || !(total_weight > 0)) return;
  report.gradient_norm = norm_of_gradients() * factor;
  if (report.gradient_norm > options.clip_norm) factor *= options.clip_norm / (report.gradient_norm + 1e-6);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    scale(buckets[b], factor);
    if (options.refuse_nan && not_finite.empty()) look_at(buckets[b]);
  }
}

// The same on all ranks.
void DistributedModule::Inside::refuse_what_came_out() const {
  if (!not_finite.empty()) {
    throw UsageError(fmt::format(
        "the gradient of '{}' is not finite (NaN or infinite) on some rank; no rank has gradients now", not_finite));
  }
  if (!(total_weight > 0) && std::ranges::find(actives, true) != actives.end())
    throw UsageError("the losses of all ranks weigh nothing together, so they have no mean");
}

// Of what the buckets hold, by the pieces that DataParallel adds it up by.
double DistributedModule::Inside::norm_of_gradients() {
  std::vector<std::size_t> lengths;
  for (const Parameter& parameter : parameters) lengths.push_back(static_cast<std::size_t>(parameter.variable.numel()));
  double squares = 0;
  const SlicePlan plan(lengths, 1);
  for (const SlicePiece& piece : plan.pieces()) {
    if (uses[piece.array] == 0) continue;
    const Array its = buckets.place_of(piece.array).array.slice(piece.slice.first, piece.slice.count);
    squares += sum_of_squares(its.type(), its.data(), its.length());
  }
  return std::sqrt(squares);
}

void DistributedModule::Inside::finish_round(Pass pass) {
  const bool reorders = !has_agreed_on_order;
  const std::exception_ptr refused = fill_what_is_missing(pass);
  if (refused) pass = Pass::threw;
  run_ready();
  std::exception_ptr failure;
  {
    const std::lock_guard lock(exchanging);
    try {
      if (error) std::rethrow_exception(error);
      if (!has_header) exchange_header();  // a module without parameters that are trained
      exchange_tail(pass);
      make_means();
      refuse_what_came_out();
      buffers->finish(*module, world);
    } catch (const PeerError& peer) {
      if (!peer.communicator_usable()) broken = peer.failure();
      failure = std::current_exception();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard state_lock(state);
    is_open = false;
    is_abandoned = false;
  }
  install_hooks();
  has_unsynced = false;
  unsynced_weight = unsynced_loss = 0;
  if (failure) {
    for (const Parameter& parameter : parameters) parameter.variable.mutable_grad() = torch::Tensor();
    buffers->undo(*module);
    if (compressor) compressor->forget();
    if (reorders && has_agreed_on_order) lay_out_buckets();
    // Others may have waited in a batch norm for the one who threw.
    if (norm_world && has_tail) norm_world.emplace(world.split({}));
    std::rethrow_exception(refused ? refused : failure);
  }
  if (compressor) keep_what_counts();
  set_gradients();
  ++step_number;
  if (reorders) lay_out_buckets();
}

// What was sent of a gradient that nobody takes is still to come.
void DistributedModule::Inside::keep_what_counts() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (uses[i] == 0) compressor->forget(parameters[i].name);
  }
  compressor->keep();
}

void DistributedModule::Inside::set_gradients() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (uses[i] > 0) {
      const torch::Tensor& view = buckets.place_of(i).view;
      if (!parameter.variable.grad().is_same(view)) parameter.variable.mutable_grad() = view;
    } else {
      parameter.variable.mutable_grad() = torch::Tensor();
      if (parameter.variable.requires_grad()) report.unused.push_back(parameter.name);
    }
  }
}

void DistributedModule::Inside::take_part_with_nothing() {
  end_abandoned_round();
  refuse_if_broken();
  // Those who still compute would wait for this rank in there.
  if (norm_world) norm_world->cancel("a rank has no more batches, and batch norm over all ranks needs all of them");
  buffers->forget();
  if (has_unsynced) {
    const double weight = unsynced_weight > 0 ? unsynced_weight : 1;
    begin_round(only({.loss = unsynced_loss / weight, .weight = weight}), Part::own_loss);
  } else {
    begin_round(only({}), Part::nothing);
  }
  finish_round(Pass::went_well);
}

template <typename Backward>
void DistributedModule::Inside::run_backward(Backward backward) {
  try {
    backward();
  } catch (...) {
    fail_with_others(part, std::current_exception());
  }
}

double DistributedModule::Inside::backward_one_shard(std::int64_t rows,
                                                     const std::function<WeightedLoss(const Rows&)>& its_loss) {
  const int shard = world.rank().value;
  const Rows mine = Rows::of_shard(rows, shards, shard);
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
      fail_with_others(closure_part(), std::current_exception());
    }
  }
  begin_round(only(weighed), closure_part());
  run_backward([&] {
    // Where batch norm takes all rows together, those of others depend on rows that weigh nothing.
    if (weighed.weight > 0 || (norm_world && computed && computed->loss.requires_grad()))
      detail::backward(*computed, weighed.weight);
  });
  finish_round(Pass::went_well);
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
      const Rows its_rows = Rows::of_shard(rows, shards, shard);
      detail::discard_gradients(module_parameters);
      if (its_rows.count > 0) {
        const RandomDraws draws({.seed = options.seed, .step = step_number, .shard = s});
        std::optional<SyncBatchNorm> norm;
        if (norm_world) norm.emplace(*norm_world);
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
    fail_with_others(closure_part(), std::current_exception());
  }
  --unsynced;
  has_unsynced = false;
  begin_round(std::move(its_losses), closure_part());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].is_used = mine.first_of(i).defined();
  shard_gradients = &mine;
  try {
    finish_round(Pass::went_well);
  } catch (...) {
    shard_gradients = nullptr;
    throw;
  }
  shard_gradients = nullptr;
  return report.loss;
}

void DistributedModule::Inside::backward_unsynced(const torch::Tensor& loss, std::optional<double> weight) {
  const WeightedLoss weighted(loss, weight.value_or(1));
  const ShardLoss weighed = detail::weigh(weighted, world.rank().value, 1);
  if (weighed.weight > 0) detail::backward(weighted, weighed.weight);
  has_unsynced = true;
  if (!weight) return;
  unsynced_weight += weighed.weight;
  unsynced_loss += weighed.weight * weighed.loss;
}

void DistributedModule::Inside::backward_own_loss(const torch::Tensor& loss, std::optional<double> weight) {
  std::optional<WeightedLoss> weighted;
  ShardLoss weighed;
  try {
    weighted.emplace(loss, weight.value_or(1));
    weighed = detail::weigh(*weighted, world.rank().value, 1);
  } catch (...) {
    fail_with_others(Part::own_loss, std::current_exception());
  }
  keep_buffers();
  ShardLoss all{.loss = 0, .weight = weighed.weight + unsynced_weight};
  if (all.weight > 0) all.loss = (weighed.weight * weighed.loss + unsynced_loss) / all.weight;
  begin_round(only(all), Part::own_loss);
  run_backward([&] {
    if (weighed.weight > 0) detail::backward(*weighted, weighed.weight);
  });
  finish_round(Pass::went_well);
}

// --- what users call ---

DistributedModule::DistributedModule(std::shared_ptr<torch::nn::Module> module, Communicator world,
                                     const DistributedOptions& options)
    : inside_(std::make_unique<Inside>(std::move(module), std::move(world), options)) {}

DistributedModule::~DistributedModule() = default;

void DistributedModule::backward(const torch::Tensor& loss, std::optional<double> weight) {
  inside_->end_abandoned_round();
  inside_->refuse_if_broken();
  const detail::OneThread one_thread;
  if (inside_->unsynced > 0) return inside_->backward_unsynced(loss, weight);
  inside_->refuse_what_needs_the_closure();
  inside_->backward_own_loss(loss, weight);
}

double DistributedModule::backward_rows(const std::function<std::int64_t()>& count,
                                        const std::function<WeightedLoss(const Rows&)>& loss) {
  Inside& in = *inside_;
  if (in.unsynced > 0) throw UsageError("no_sync: a batch that all ranks have is synchronised when it is computed");
  in.end_abandoned_round();
  in.refuse_if_broken();
  const detail::OneThread one_thread;
  std::int64_t rows = 0;
  try {
    rows = count();
    if (rows < 1) throw UsageError("a batch without rows has no loss");
    if (in.options.sync_batch_norm && rows < in.shards) {
      throw UsageError(
          fmt::format("sync_batch_norm: every rank needs a row, found {} rows for {} ranks", rows, size()));
    }
  } catch (...) {
    in.fail_with_others(in.closure_part(), std::current_exception());
  }
  return in.options.logical_shards > 0 ? in.backward_shards(rows, loss) : in.backward_one_shard(rows, loss);
}

void DistributedModule::step(torch::optim::Optimizer& optimizer) {
  const detail::OneThread one_thread;
  detail::step(optimizer);
}

void DistributedModule::count_unsynced(int change) {
  if (change > 0) inside_->end_abandoned_round();
  inside_->unsynced += change;
}

void DistributedModule::join(torch::optim::Optimizer* optimizer) {
  do {
    inside_->take_part_with_nothing();
  } while (std::ranges::find(inside_->actives, true) != inside_->actives.end());
  if (inside_->norm_world) inside_->norm_world.emplace(inside_->world.split({}));
  // All have seen the same rounds, so all know the same one.
  inside_->share_state(inside_->last_active, optimizer);
  inside_->buffers->begin(*inside_->module);
}

void DistributedModule::rebuild(std::span<const Rank> survivors, torch::optim::Optimizer* optimizer) {
  Inside& in = *inside_;
  in.close_round();
  in.world = in.world.rebuild(survivors);
  in.last_active = Rank{0};
  in.broken.reset();
  if (in.options.logical_shards == 0) in.shards = in.world.size();
  in.share_state(Rank{0}, optimizer);
  in.buffers.emplace(*in.module, in.shards, in.buffers_mode);
  if (in.norm_world) in.norm_world.emplace(in.world.split({}));
  // Some may have agreed on an order in the round that failed, and others not.
  in.has_agreed_on_order = false;
  in.begin_with_the_last_layers();
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
