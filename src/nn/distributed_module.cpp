#include <tutti/nn/distributed_module.hpp>

#include <algorithm>
#include <cmath>

#include <tutti/base/chunk.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/sync_batch_norm.hpp>

#include "autocast.hpp"
#include "distributed_inside.hpp"
#include "kernel_optimizer.hpp"

namespace tutti {

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

// Whoever trains the module may have changed it since.
void DistributedModule::Inside::refuse_other_parameters() const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& variable = parameters[i].variable;
    const torch::Tensor& view = buckets.place_of(i).view;
    if (variable.scalar_type() != view.scalar_type())
      throw UsageError(fmt::format("the parameter '{}' has changed its type since training began", parameters[i].name));
    if (variable.sizes() != view.sizes() || variable.strides() != view.strides())
      throw UsageError(
          fmt::format("the parameter '{}' has changed its shape since training began", parameters[i].name));
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
      weighed = detail::weigh(*computed, detail::shard_name(shard), mine.count);
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
        its_losses[s] = detail::weigh(computed, detail::shard_name(shard), its_rows.count);
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
  const ShardLoss weighed = detail::weigh(weighted, to_string(world.rank()), 1);
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
    refuse_other_parameters();
    weighted.emplace(loss, weight.value_or(1));
    weighed = detail::weigh(*weighted, to_string(world.rank()), 1);
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
  const OneThread one_thread;
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
  const OneThread one_thread;
  std::int64_t rows = 0;
  try {
    in.refuse_other_parameters();
    rows = count();
    if (rows < 1) throw UsageError("a batch without rows has no loss");
    if (in.options.sync_batch_norm && rows < in.shards) {
      throw UsageError(
          fmt::format("sync_batch_norm: every rank needs a row, found {} rows for {} ranks", rows, size()));
    }
  } catch (...) {
    in.fail_with_others(in.closure_part(), std::current_exception());
  }
  in.batch_rows = rows;
  return in.options.logical_shards > 0 ? in.backward_shards(rows, loss) : in.backward_one_shard(rows, loss);
}

void DistributedModule::step(torch::optim::Optimizer& optimizer) {
  const OneThread one_thread;
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

std::uint64_t DistributedModule::steps_taken() const { return inside_->step_number; }
void DistributedModule::go_on_after(std::uint64_t steps) { inside_->step_number = steps; }

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
