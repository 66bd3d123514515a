#include <algorithm>
#include <cmath>
#include <exception>
#include <ranges>
#include <span>

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>
#include <tutti/base/bytes.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/sync_batch_norm.hpp>
#include <tutti/sync/shard_fold.hpp>
#include <tutti/transport/threads.hpp>

#include "autocast.hpp"
#include "data_parallel_inside.hpp"
#include "replica_comparison.hpp"

namespace tutti::detail {
namespace {

[[noreturn]] void refuse_gradient(const std::string& name) {
  throw UsageError(fmt::format("the gradient of '{}' is not finite (NaN or infinite); nothing was changed", name));
}

void refuse_unless_possible(const DataParallelOptions& options) {
  const auto refuse = [](const char* option, const char* expected, auto found) {
    throw UsageError(fmt::format("{}: expected {}, found {}", option, expected, found));
  };
  if (options.replicas < 0) refuse("replicas", "a number from 0 on", options.replicas);
  if (options.logical_shards < 0) refuse("logical_shards", "a number from 0 on", options.logical_shards);
  if (options.accumulate < 1) refuse("accumulate", "at least 1 step", options.accumulate);
  if (!(options.clip_norm >= 0) || !std::isfinite(options.clip_norm))
    refuse("clip_norm", "a number from 0 on", options.clip_norm);
  if (options.deadline <= Duration::zero()) throw UsageError("deadline: expected more than no time");
  validate(options.algorithm);
  if (is_of_engine(options.algorithm) && options.world == nullptr) {
    throw UsageError(
        fmt::format("algorithm: {} is for processes, and replicas are threads of one", to_string(options.algorithm)));
  }
  validate(options.compression);
}

}  // namespace

DataParallelEngine::Inside::Inside(std::shared_ptr<torch::nn::Module> module,
                                   const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                                   std::shared_ptr<torch::optim::Optimizer> its_optimizer,
                                   const DataParallelOptions& its_options)
    : optimizer(std::move(its_optimizer)), options(its_options) {
  if (!module) throw UsageError("there is no module to train");
  if (!optimizer) throw UsageError("there is no optimizer");
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer.get()) != nullptr)
    throw UsageError("LBFGS wants to evaluate the loss several times a step; a data-parallel step evaluates it once");
  refuse_unless_possible(options);
  set_up_blas();
  keep_freed_memory();
  if (options.replicas == 0) options.replicas = usable_core_count() * process_count();
  if (options.replicas < process_count()) {
    throw UsageError(fmt::format("replicas: expected at least one for each of {} processes, found {}", process_count(),
                                 options.replicas));
  }
  const Slice own_replicas = chunk(static_cast<std::size_t>(options.replicas), process_count(), process());
  first_replica = static_cast<int>(own_replicas.first);
  workers = static_cast<int>(own_replicas.count);
  shards = options.logical_shards == 0 ? options.replicas : options.logical_shards;
  if (shards < options.replicas) {
    throw UsageError(fmt::format("logical_shards: expected at least one for each of {} replicas, found {}",
                                 options.replicas, shards));
  }
  own_shards = chunk(static_cast<std::size_t>(shards), process_count(), process());
  buffers_mode = options.buffers.value_or(options.logical_shards == 0 ? Buffers::follow_first : Buffers::per_shard);
  if (is_exchanged_as_named() && options.logical_shards != 0) {
    throw UsageError(
        fmt::format("logical_shards: the same bits on any number of replicas need the algorithm Auto and no "
                    "compression, found {} and {}",
                    to_string(options.algorithm), to_string(options.compression)));
  }
  if (options.sync_batch_norm && shards != options.replicas) {
    throw UsageError(
        fmt::format("sync_batch_norm: all shards must be computed at the same time, and {} shards are for {} "
                    "replicas",
                    shards, options.replicas));
  }
  if (options.sync_batch_norm && options.world != nullptr)
    throw UsageError("sync_batch_norm: is for the replicas of one process");
  if (options.steps_alone && !options.is_private)
    throw UsageError("steps_alone: processes that say nothing to each other in a step need parameters of their own");
  if (options.is_private && options.logical_shards != 0) {
    throw UsageError(
        "logical_shards: the same bits on any number of replicas cannot be where replicas have parameters of their "
        "own");
  }

  replicas.emplace(std::move(module), make, workers, options.is_private);
  refuse_unless_ours();
  std::vector<std::size_t> lengths;
  std::vector<bool> is_shared;
  for (std::size_t i = 0; i < replicas->tensors().size(); ++i) {
    is_shared.push_back(!replicas->is_private(i));
    if (options.steps_alone && is_shared[i])
      throw UsageError(fmt::format("steps_alone: '{}' is shared, and all parameters have to be private", name_of(i)));
    lengths.push_back(is_shared[i] ? static_cast<std::size_t>(replicas->tensors()[i].numel()) : 0);
  }
  plan.emplace(lengths, workers);
  for (const SlicePiece& piece : plan->pieces()) pieces_by_name.push_back(piece.index);
  std::ranges::stable_sort(pieces_by_name, {},
                           [this](std::size_t piece) { return name_of(plan->pieces()[piece].array); });
  squares.resize(plan->pieces().size());
  is_finite.resize(plan->pieces().size());
  not_finite.resize(replicas->size());
  spans.resize(replicas->size());
  buffers.emplace(replicas->module(), shards, buffers_mode, options.is_private);
  for (const Replica& replica : *replicas) buffers->refuse_unless_like(*replica.module);
  if (options.world != nullptr && !options.steps_alone) {
    processes.emplace(*options.world, replicas->parameters(), is_shared,
                      ProcessExchangeOptions{
                          .algorithm = options.algorithm, .compression = options.compression, .seed = options.seed});
  } else if (is_exchanged_as_named()) {
    named.emplace(*replicas, NamedExchangeOptions{.algorithm = options.algorithm,
                                                  .compression = options.compression,
                                                  .seed = options.seed,
                                                  .deadline = options.deadline});
  }
  if (replicas->has_private()) {
    own.emplace(*replicas, optimizer,
                PrivateParametersOptions{.clip_norm = options.clip_norm, .refuse_nan = options.refuse_nan});
  }
  if (options.sync_batch_norm) make_norm_worlds();
  team = std::make_unique<WorkerTeam>(workers, [] { use_one_thread(); });
}

void DataParallelEngine::Inside::refuse_unless_ours() const {
  const std::vector<torch::Tensor>& tensors = replicas->tensors();
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    for (const torch::Tensor& its : group.params()) {
      if (std::ranges::any_of(tensors, [&](const torch::Tensor& tensor) { return tensor.is_same(its); })) continue;
      for (const ModuleParameter& parameter : replicas->parameters()) {
        if (std::ranges::none_of(parameter.variables, [&](const torch::Tensor& one) { return one.is_same(its); }))
          continue;
        throw UsageError(fmt::format("the parameters '{}' are the same memory: give the optimizer only the first",
                                     fmt::join(parameter.names, "' and '")));
      }
      throw UsageError("the optimizer has a parameter that is not the module's");
    }
  }
}

void DataParallelEngine::Inside::make_norm_worlds() {
  norm_worlds.clear();
  for (std::unique_ptr<Transport>& transport : make_threads_world(options.replicas))
    norm_worlds.emplace_back(std::move(transport), CommunicatorOptions{.deadline = options.deadline});
}

ShardLoss DataParallelEngine::Inside::run_shard(std::size_t worker, int shard, const Rows& rows,
                                                const ReplicaLoss& loss) {
  const Clock::time_point began = Clock::now();
  const RandomDraws draws({.seed = options.seed, .step = step_number, .shard = static_cast<std::uint64_t>(shard)});
  std::optional<SyncBatchNorm> norm;
  if (options.sync_batch_norm) norm.emplace(norm_worlds[worker]);
  const auto computed = [&] {
    const Autocast autocast(options.autocast);
    return loss(*(*replicas)[worker].module, rows);
  }();
  const ShardLoss weighed = detail::weigh(computed, shard_name(shard), rows.count);
  note(worker, SpanKind::compute, "forward", began);
  const Clock::time_point computed_at = Clock::now();
  // Where batch norm takes all rows together, those of others depend on rows that weigh nothing.
  if (weighed.weight > 0 || (options.sync_batch_norm && computed.loss.requires_grad()))
    detail::backward(computed, weighed.weight);
  note(worker, SpanKind::compute, "backward", computed_at);
  return weighed;
}

void DataParallelEngine::Inside::run_shards(int worker, std::int64_t rows, const ReplicaLoss& loss) {
  const auto w = static_cast<std::size_t>(worker);
  const Replica& replica = (*replicas)[w];
  ShardGradients& mine = gradients[w];
  const Slice its_shards = shards_of(worker);
  for (std::size_t s = its_shards.first; s < its_shards.end(); ++s) {
    const int shard = static_cast<int>(s);
    const Rows its_rows = Rows::of_shard(rows, shards, shard);
    discard_gradients(replica.parameters);
    if (its_rows.count > 0) {
      buffers->take(shard, *replica.module);
      losses[s] = run_shard(w, shard, its_rows, loss);
      buffers->keep(shard, *replica.module);
    }
    const bool counts = losses[s].weight > 0 || (options.sync_batch_norm && its_rows.count > 0);
    mine.add(shard, counts ? take_gradients(replica.parameters) : std::vector<torch::Tensor>());
  }
}

void DataParallelEngine::Inside::compute(std::int64_t rows, const ReplicaLoss& loss) {
  losses.assign(static_cast<std::size_t>(shards), {});
  gradients.assign(replicas->size(), ShardGradients(shards));
  run_replicas([this, rows, loss](int worker) { run_shards(worker, rows, loss); });
}

// Whoever misses the deadline goes on when this has thrown, so nothing that it uses may be on the caller's stack.
void DataParallelEngine::Inside::run_workers(const std::function<void(int)>& f) {
  team->run([self = shared_from_this(), f](int worker) { f(worker); }, options.deadline);
}

void DataParallelEngine::Inside::run_timed(SpanKind kind, const char* name, const std::function<void(int)>& f) {
  run_workers([this, kind, name, f](int worker) {
    const Clock::time_point began = Clock::now();
    f(worker);
    note(static_cast<std::size_t>(worker), kind, name, began);
  });
}

// The same, as the caller would: what libtorch keeps for its thread counts for all of them.
void DataParallelEngine::Inside::run_replicas(const std::function<void(int)>& f) {
  const auto run_one = [callers = at::ThreadLocalState(), f](int worker) {
    const at::ThreadLocalStateGuard guard(callers);
    f(worker);
  };
  if (!options.sync_batch_norm) return run_workers(run_one);

  // Who throws leaves the others waiting for it in a batch norm. They hear of it, and what they then throw counts less
  // than the reason.
  struct Errors {
    std::vector<std::exception_ptr> reasons, consequences;
  };
  const auto found = std::make_shared<Errors>();
  found->reasons.resize(replicas->size());
  found->consequences.resize(replicas->size());
  run_workers([this, run_one, found](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    try {
      run_one(worker);
      return;
    } catch (const PeerError&) {
      found->consequences[w] = std::current_exception();
    } catch (...) {
      found->reasons[w] = std::current_exception();
    }
    norm_worlds[w].cancel("a replica failed");
  });
  if (std::ranges::any_of(norm_worlds, &Communicator::broken)) make_norm_worlds();
  for (const auto* errors : {&found->reasons, &found->consequences}) {
    for (const std::exception_ptr& error : *errors) {
      if (error) std::rethrow_exception(error);
    }
  }
}

StepReport DataParallelEngine::Inside::weigh() {
  StepReport report;
  for (const ShardLoss& one : losses) {
    report.weight += one.weight;
    report.loss += one.weight * one.loss;
  }
  if (!(report.weight > 0) && is_alone()) return {};  // others may have rows that count
  if (!(report.weight > 0)) throw UsageError("all rows of the batch weigh nothing together, so they have no mean loss");
  report.loss /= report.weight;
  if (std::ranges::find(is_used, true) == is_used.end()) {
    throw UsageError(
        "the loss does not depend on any parameter of the module; the closure must use the module that it is given");
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!is_used[i] && replicas->tensors()[i].requires_grad()) report.unused.push_back(name_of(i));
  }
  return report;
}

// A closure may use another replica's module only in later steps.
void DataParallelEngine::Inside::refuse_gradients_elsewhere() const {
  for (std::size_t w = 0; w < gradients.size(); ++w) {
    const Slice its_shards = shards_of(static_cast<int>(w));
    const bool counts = std::ranges::any_of(std::span(losses).subspan(its_shards.first, its_shards.count),
                                            [](const ShardLoss& loss) { return loss.weight > 0; });
    bool has_any = false;
    for (std::size_t i = 0; i < parts.size() && !has_any; ++i) has_any = gradients[w].first_of(i).defined();
    if (counts && !has_any) {
      throw UsageError(
          fmt::format("replica {}: its loss does not depend on any of its own parameters; the closure must use the "
                      "module that it is given",
                      first_replica + static_cast<int>(w)));
    }
  }
}

// A sum in one place takes the memory of the first gradient that is there.
void DataParallelEngine::Inside::line_up_gradients() {
  const std::size_t count = replicas->parameters().size();
  parts.assign(count, {});
  sums.assign(count, {});
  is_used.assign(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    for (const ShardGradients& worker : gradients) {
      worker.append_parts(i, parts[i]);
      if (!sums[i].defined()) sums[i] = worker.first_of(i);
    }
    is_used[i] = sums[i].defined();
    if (replicas->is_private(i)) sums[i] = torch::Tensor();
  }
}

// What other processes have computed counts here as well.
void DataParallelEngine::Inside::agree_with_processes() {
  const Clock::time_point began = Clock::now();
  processes->agree(losses, is_used);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!replicas->is_private(i)) sums[i] = is_used[i] ? processes->sum_of(i) : torch::Tensor();
  }
  note(0, SpanKind::waiting, "for other processes", began);
}

void DataParallelEngine::Inside::exchange_with_processes(double weight) {
  if (options.logical_shards > 0) {
    ShardGradients mine(shards);
    for (ShardGradients& worker : gradients) mine.append(std::move(worker));
    const Clock::time_point began = Clock::now();
    processes->add_up(shards, mine);
    note(0, SpanKind::communication, "exchange", began);
    return;
  }
  run_timed(SpanKind::communication, "sum", [this](int worker) {
    for (const SlicePiece& piece : plan->share_of(worker)) {
      std::byte* sum = place_in(processes->sum_of(piece.array), piece);
      fold_piece(piece, sum);
    }
  });
  const Clock::time_point began = Clock::now();
  processes->add_up(weight);
  note(0, SpanKind::communication, "exchange", began);
}

void DataParallelEngine::Inside::look_at_private(int worker) {
  const auto w = static_cast<std::size_t>(worker);
  const Slice its_shards = shards_of(worker);
  not_finite[w] = own->look(worker, gradients[w], losses[its_shards.first].weight);
}

StepReport DataParallelEngine::Inside::step(std::int64_t rows, const ReplicaLoss& loss) {
  if (is_stepping.exchange(true)) throw UsageError("a step is in progress: a closure, or another thread, called step");
  const auto over = [](std::atomic<bool>* flag) { flag->store(false); };
  const std::unique_ptr<std::atomic<bool>, decltype(over)> stepping(&is_stepping, over);
  if (team->is_stuck()) team->run([](int) {});  // says who
  if (rows < 1) throw UsageError("a batch without rows has no loss");
  if (!torch::GradMode::is_enabled() || c10::InferenceMode::is_enabled())
    throw UsageError("a step needs gradients, and the caller has them switched off (NoGradGuard or InferenceMode)");
  step_began = Clock::now();
  for (std::vector<StepSpan>& one : spans) one.clear();
  if (options.sync_batch_norm && rows < shards) {
    throw UsageError(
        fmt::format("sync_batch_norm: every replica needs a row, found {} rows for {} replicas", rows, shards));
  }
  refuse_unless_possible(*optimizer);
  replicas->follow_the_module();
  torch::nn::Module& module = replicas->module();
  const OneThread one_thread;
  buffers->begin(module);
  StepReport report;
  bool fails_on_all = false;  // of the processes; otherwise the others must be told
  try {
    if (!is_compared) compare_replicas(rows, loss);
    compute(rows, loss);
    line_up_gradients();
    if (processes) {
      refuse_gradients_elsewhere();
      agree_with_processes();
      fails_on_all = true;
      report = weigh();
      fails_on_all = false;
      exchange_with_processes(report.weight);
    } else {
      report = weigh();
      refuse_gradients_elsewhere();
      if (named) exchange(report.weight);
    }
    if (!is_in_one_pass()) {
      run_timed(SpanKind::communication, is_exchanged() ? "look" : "sum", [this](int worker) {
        sum_slice(worker);
        if (own) look_at_private(worker);
      });
      if (own) refuse_private_not_finite();
      fails_on_all = !is_alone();
      if (options.refuse_nan) refuse_not_finite();
      fails_on_all = false;
      take_what_was_accumulated();
    }
    if (processes) buffers->exchange(*options.world);  // the last that others can fail, before anything is changed
    const double weight = accumulated_weight + report.weight;
    report.updated = accumulated_steps + 1 == options.accumulate;
    if (own) own->prepare(report.updated);
    if (report.updated) {
      double scale = 1 / weight;
      if (options.clip_norm > 0) {
        report.gradient_norm = norm_of_sums() * scale;
        if (report.gradient_norm > options.clip_norm) scale *= options.clip_norm / (report.gradient_norm + 1e-6);
      }
      apply(scale);
      accumulated.clear();
    } else {
      accumulate_sums();
    }
    accumulated_weight = report.updated ? 0 : weight;
    accumulated_steps = report.updated ? 0 : accumulated_steps + 1;
    buffers->finish(module);
  } catch (const std::exception& error) {
    fail(error.what(), fails_on_all);
    throw;
  } catch (...) {
    fail("a step failed", fails_on_all);
    throw;
  }
  if (named) named->keep();
  if (processes) processes->keep(is_used);
  ++step_number;
  gradients.clear();
  sums.clear();
  tell_spans(report);
  return report;
}

// Nothing has happened; other processes hear of it.
void DataParallelEngine::Inside::fail(const std::string& why, bool fails_on_all) {
  if (options.world != nullptr && !fails_on_all && !options.world->broken()) options.world->cancel(why);
  buffers->undo(replicas->module());
  if (team->is_stuck()) return;  // whoever is late still writes to the rest
  if (named) named->forget();
  if (processes) processes->forget();
  if (own) own->forget();
  gradients.clear();
  sums.clear();
}

// Where sums lie in memory that the next step uses, they are copied.
void DataParallelEngine::Inside::accumulate_sums() {
  if (processes) {
    for (torch::Tensor& sum : sums) {
      if (sum.defined()) sum = sum.clone();
    }
  }
  accumulated = std::move(sums);
}

// Between a worker's spans it waited for others.
void DataParallelEngine::Inside::tell_spans(StepReport& report) {
  const Clock::time_point now = Clock::now();
  for (std::size_t w = 0; w < spans.size(); ++w) {
    Clock::time_point last = step_began;
    const auto wait_until = [&](Clock::time_point time) {
      constexpr std::chrono::microseconds kWorthTelling{1};
      if (time - last > kWorthTelling)
        report.spans.push_back({first_replica + static_cast<int>(w), SpanKind::waiting, "wait", last, time});
    };
    for (const StepSpan& span : spans[w]) {
      wait_until(span.begin);
      report.spans.push_back(span);
      last = span.end;
    }
    wait_until(now);
  }
}

// What was not used in this step may have been in one before.
void DataParallelEngine::Inside::take_what_was_accumulated() {
  for (std::size_t i = 0; i < accumulated.size(); ++i) {
    if (!sums[i].defined()) sums[i] = accumulated[i];
  }
}

void DataParallelEngine::Inside::fold_piece(const SlicePiece& piece, std::byte* sum) const {
  const DataType type = replicas->types()[piece.array];
  std::vector<ShardPart> its = parts[piece.array];
  for (ShardPart& part : its) {
    if (part.data != nullptr) part.data = static_cast<const std::byte*>(part.data) + piece.slice.first * size_of(type);
  }
  // Of one process that is one of several, along the tree over its own.
  if (processes) {
    for (ShardPart& part : its) part.first -= static_cast<int>(own_shards.first);
    if (!fold_shards(type, static_cast<int>(own_shards.count), its, sum, piece.slice.count))
      std::fill_n(sum, piece.slice.count * size_of(type), std::byte{0});
    return;
  }
  fold_shards(type, shards, its, sum, piece.slice.count);
}

// This worker's slice of everybody's gradients, and of what was accumulated before; and a look at it.
void DataParallelEngine::Inside::sum_slice(int worker) {
  for (const SlicePiece& piece : plan->share_of(worker)) {
    std::byte* sum = place_of_sum(worker, piece);
    const DataType type = replicas->types()[piece.array];
    is_finite[piece.index] = 1;
    squares[piece.index] = 0;
    const std::byte* before = accumulated_steps > 0 ? place_in(accumulated[piece.array], piece) : nullptr;
    if (sum != nullptr) {
      if (!is_exchanged()) fold_piece(piece, sum);
      if (before != nullptr) fold(ReduceOp::sum, type, sum, before, sum, piece.slice.count);
      if (options.refuse_nan) is_finite[piece.index] = all_finite(type, sum, piece.slice.count) ? 1 : 0;
    }
    const std::byte* whole = sum != nullptr ? sum : before;
    if (options.clip_norm > 0 && whole != nullptr)
      squares[piece.index] = sum_of_squares(type, whole, piece.slice.count);
  }
}

void DataParallelEngine::Inside::exchange(double weight) {
  run_timed(SpanKind::communication, "pack", [this, weight](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    not_finite[w] = named->put(worker, gradients[w], weight);
  });
  if (options.refuse_nan) {
    for (const std::string& name : not_finite) {
      if (!name.empty()) refuse_gradient(name);
    }
  }
  run_timed(SpanKind::communication, "exchange", [this](int worker) { named->run(worker); });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].defined()) named->take(i, sums[i], weight);
  }
}

void DataParallelEngine::Inside::refuse_not_finite() const {
  for (const SlicePiece& piece : plan->pieces()) {
    if (is_finite[piece.index] == 0) refuse_gradient(name_of(piece.array));
  }
}

void DataParallelEngine::Inside::refuse_private_not_finite() const {
  for (const std::string& name : not_finite) {
    if (!name.empty()) refuse_gradient(name);
  }
}

double DataParallelEngine::Inside::norm_of_sums() const {
  // Whoever has which parameters, by their names.
  double sum = 0;
  for (const std::size_t piece : pieces_by_name) sum += squares[piece];
  return std::sqrt(sum);
}

void DataParallelEngine::Inside::apply(double scale) {
  const std::vector<torch::Tensor>& tensors = replicas->tensors();
  if (!has_kernels(*optimizer)) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      tensors[i].mutable_grad() = sums[i].defined() ? sums[i].mul(scale) : torch::Tensor();
    optimizer->step();
    for (const torch::Tensor& tensor : tensors) tensor.mutable_grad() = torch::Tensor();
    return;
  }
  std::vector<bool> has_gradient;
  for (const torch::Tensor& sum : sums) has_gradient.push_back(sum.defined());
  updates = prepare_updates(*optimizer, tensors, has_gradient);
  run_timed(SpanKind::compute, "update", [this, scale](int worker) {
    is_in_one_pass() ? sum_and_update_slice(worker, scale) : update_slice(worker, scale);
    if (own) own->update(worker);
  });
}

void DataParallelEngine::Inside::update_slice(int worker, double scale) {
  // From the end: what was added up last may still be in the core's cache.
  for (const SlicePiece& piece : std::views::reverse(plan->share_of(worker))) {
    const PreparedUpdate& prepared = updates[piece.array];
    if (prepared.is_due) update(prepared, piece.slice, place_of_sum(worker, piece), scale);
  }
  // Nobody else needs them, but for what `sums` has.
  if (is_summed_in_pieces()) gradients[static_cast<std::size_t>(worker)] = ShardGradients(shards);
}

void DataParallelEngine::Inside::sum_and_update_slice(int worker, double scale) const {
  std::vector<std::byte> sum(SlicePlan::kLongest * sizeof(double));
  for (const SlicePiece& piece : plan->share_of(worker)) {
    const PreparedUpdate& prepared = updates[piece.array];
    if (!prepared.is_due) continue;
    fold_piece(piece, sum.data());
    update(prepared, piece.slice, sum.data(), scale);
  }
}

// All replicas compute the loss of the same rows once, and must come to the same.
void DataParallelEngine::Inside::compare_replicas(std::int64_t rows, const ReplicaLoss& loss) {
  is_compared = replicas->size() == 1 || own;  // what replicas have of their own makes them differ
  if (is_compared) return;
  const int first = static_cast<int>(own_shards.first);
  const Rows same = Rows::of_shard(rows, shards, first);
  if (same.count == 0) return;  // a batch so small that there is nothing to compare; the next one will do
  const auto results = std::make_shared<std::vector<ReplicaResult>>(replicas->size());
  // One whose closure uses another replica's module leaves its gradients there, so nobody takes any before all are
  // through.
  for (const Replica& replica : *replicas) discard_gradients(replica.parameters);
  run_replicas([this, results, same, loss, first](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    buffers->take(first, *(*replicas)[w].module);
    (*results)[w].loss = run_shard(w, first, same, loss);
  });
  for (std::size_t r = 0; r < replicas->size(); ++r)
    (*results)[r].gradients = take_gradients((*replicas)[r].parameters);
  buffers->undo(replicas->module());
  refuse_other_functions(replicas->parameters(), *results);
  is_compared = results->front().loss.weight > 0;  // otherwise there was nothing to compare
}

std::string DataParallelEngine::Inside::describe() const {
  std::string text = fmt::format("{} {}, ", options.replicas, options.replicas == 1 ? "replica" : "replicas");
  const bool is_compressed = !std::holds_alternative<NoCompression>(options.compression);
  const std::string exchanged = fmt::format("all-reduced by {}{}", to_string(options.algorithm),
                                            is_compressed ? ", compressed by " + to_string(options.compression) : "");
  if (processes) {
    text += fmt::format(
        "threads of {} processes; each process adds up its gradients, {} between processes, then "
        "updated slice by slice",
        process_count(), exchanged);
  } else if (named) {
    text += fmt::format("threads of one process; gradients {}, then updated slice by slice", exchanged);
  } else if (is_in_one_pass()) {
    text += "threads of one process; each thread sums its slice of all gradients and updates it in the same pass";
  } else {
    text += "threads of one process; each thread sums its slice of all gradients, looks at it, and updates it";
  }
  if (own) text += fmt::format("; {} parameters are each replica's own", own->parameters().size());
  if (!has_kernels(*optimizer)) text += "; the optimizer is torch's own and steps once, on one thread";
  if (options.logical_shards > 0) {
    const std::size_t most = most_parts_at_once(shards, options.replicas);
    text += fmt::format(
        "; {} logical shards, the same bits on any number of replicas: {} passes of {} of the batch a "
        "replica, and up to {} of gradients each",
        shards, (shards + options.replicas - 1) / options.replicas, fmt::format("1/{}", shards),
        to_string(Bytes{replicas->bytes() * most}));
  }
  return text;
}

// --- the engine, as the template sees it ---

std::vector<torch::Tensor> parameters_to_train(const torch::nn::Module* module) {
  if (module == nullptr) throw UsageError("there is no module to train");
  return module->parameters();
}

DataParallelEngine::DataParallelEngine(std::shared_ptr<torch::nn::Module> module,
                                       const std::function<std::shared_ptr<torch::nn::Module>()>& make_replica,
                                       std::shared_ptr<torch::optim::Optimizer> optimizer,
                                       const DataParallelOptions& options)
    : inside_(std::make_shared<Inside>(std::move(module), make_replica, std::move(optimizer), options)) {}
DataParallelEngine::~DataParallelEngine() {
  // Its threads end now; one that is late keeps the rest until it is through.
  if (inside_) inside_->team.reset();
}
DataParallelEngine::DataParallelEngine(DataParallelEngine&&) noexcept = default;
DataParallelEngine& DataParallelEngine::operator=(DataParallelEngine&&) noexcept = default;

StepReport DataParallelEngine::step(std::int64_t rows, const ReplicaLoss& loss) { return inside_->step(rows, loss); }
torch::optim::Optimizer& DataParallelEngine::optimizer() { return *inside_->optimizer; }
std::uint64_t DataParallelEngine::steps_taken() const { return inside_->step_number; }
void DataParallelEngine::go_on_after(std::uint64_t steps) { inside_->step_number = steps; }
OwnShards DataParallelEngine::own_shards() const {
  return {.first = static_cast<int>(inside_->own_shards.first),
          .count = static_cast<int>(inside_->own_shards.count),
          .of = inside_->shards};
}
std::vector<std::pair<std::string, torch::Tensor>> DataParallelEngine::private_parameters(int replica) const {
  if (replica < 0 || replica >= inside_->workers)
    throw UsageError(fmt::format("expected a replica from 0 to {}, found {}", inside_->workers - 1, replica));
  std::vector<std::pair<std::string, torch::Tensor>> result;
  if (!inside_->own) return result;
  const std::vector<std::size_t>& which = inside_->own->parameters();
  for (std::size_t k = 0; k < which.size(); ++k)
    result.emplace_back(inside_->name_of(which[k]), inside_->own->variable(replica, k));
  return result;
}
void DataParallelEngine::share_buffers() {
  if (inside_->is_alone()) inside_->buffers->share(inside_->replicas->module(), *inside_->options.world);
}
void DataParallelEngine::save(ParameterSet& state) { inside_->save(state); }
void DataParallelEngine::restore(const ParameterSet& state) { inside_->restore(state); }
CompressionTally DataParallelEngine::compression_tally() const {
  if (inside_->processes && inside_->processes->compressor()) return inside_->processes->compressor()->tally();
  return inside_->named ? inside_->named->tally() : CompressionTally{inside_->options.compression, {}, {}};
}
std::string DataParallelEngine::describe() const { return inside_->describe(); }

}  // namespace tutti::detail
