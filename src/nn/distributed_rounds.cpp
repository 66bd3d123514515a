#include "distributed_inside.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/sync/slice_plan.hpp>

#include "shard_exchange.hpp"

namespace tutti {

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
  const detail::GradientPlace& place = buckets.place_of(index);
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
  use_one_thread();
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
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto me = static_cast<std::size_t>(world.rank().value);
  const std::size_t parts = 2 * count;        // by rank: its part
  const std::size_t batches = parts + ranks;  // by rank: how many rows the batch has that all bring; 0 for a loss
  std::vector<double> header(batches + ranks);
  for (std::size_t s = 0; s < count; ++s) {
    header[s] = losses[s].weight;
    header[count + s] = losses[s].weight * losses[s].loss;
  }
  header[parts + me] = static_cast<double>(part);
  header[batches + me] = static_cast<double>(batch_rows);
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
    const auto its = static_cast<std::size_t>(header[parts + static_cast<std::size_t>(rank.value)]);
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
  const auto with_batch =
      std::ranges::find_if(std::span(header).subspan(batches), [](double rows) { return rows > 0; });
  for (Rank rank : all_ranks(world.size())) {
    const double rows = header[batches + static_cast<std::size_t>(rank.value)];
    if (rows == 0 || rows == *with_batch) continue;
    throw PeerError({FailureKind::disagreement,
                     {rank},
                     fmt::format("the batch that all ranks bring has {} rows on {}, and {} on others", rows,
                                 to_string(rank), *with_batch)});
  }
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

// Of what the buckets hold, by the pieces that DataParallel adds it up by, and in its order: that of names.
double DistributedModule::Inside::norm_of_gradients() {
  std::vector<std::size_t> by_name(parameters.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::ranges::sort(by_name, {}, [this](std::size_t i) { return parameters[i].name; });
  std::vector<std::size_t> lengths;
  for (const std::size_t i : by_name) lengths.push_back(static_cast<std::size_t>(parameters[i].variable.numel()));
  double squares = 0;
  const SlicePlan plan(lengths, 1);
  for (const SlicePiece& piece : plan.pieces()) {
    const std::size_t parameter = by_name[piece.array];
    if (uses[parameter] == 0) continue;
    const Array its = buckets.place_of(parameter).array.slice(piece.slice.first, piece.slice.count);
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
      failure = std::current_exception();
      if (!peer.communicator_usable()) {
        broken = peer.failure();
        if (peer.kind() == FailureKind::lost) broken->message += " (a rank that has no more batches calls join)";
        failure = std::make_exception_ptr(PeerError(*broken));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard state_lock(state);
    is_open = false;
    is_abandoned = false;
  }
  install_hooks();
  has_unsynced = false;
  batch_rows = 0;
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

}  // namespace tutti
