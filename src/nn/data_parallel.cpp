#include <tutti/nn/data_parallel.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <span>

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>
#include <tutti/base/bytes.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/sync_batch_norm.hpp>
#include <tutti/sync/shard_fold.hpp>
#include <tutti/sync/worker_team.hpp>
#include <tutti/transport/threads.hpp>

#include "kernel_optimizer.hpp"
#include "module_parameters.hpp"
#include "shard_buffers.hpp"
#include "shard_gradients.hpp"
#include "thread_settings.hpp"

namespace tutti::detail {
namespace {

// What a thread takes at a time. Norms are added up by these pieces, so that their bits do not depend on who took
// which.
constexpr std::size_t kPieceLength = 8192;

struct Piece {
  std::size_t parameter = 0;
  Slice slice;
  std::size_t first = 0;  // of its elements, counted over all parameters
};

std::vector<Piece> cut_into_pieces(const std::vector<ModuleParameter>& parameters) {
  std::vector<Piece> pieces;
  std::size_t first = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto length = static_cast<std::size_t>(parameters[i].tensor().numel());
    for (std::size_t done = 0; done < length; done += kPieceLength) {
      pieces.push_back({i, {done, std::min(kPieceLength, length - done)}, first + done});
    }
    first += length;
  }
  return pieces;
}

// Contiguous shares of the pieces, about equally long: where worker w's begins.
std::vector<std::size_t> share_out(const std::vector<Piece>& pieces, int workers) {
  const std::size_t total = pieces.empty() ? 0 : pieces.back().first + pieces.back().slice.count;
  std::vector<std::size_t> begins;
  for (int worker = 0; worker <= workers; ++worker) {
    const std::size_t from = total * static_cast<std::size_t>(worker) / static_cast<std::size_t>(workers);
    const auto it = std::ranges::lower_bound(pieces, from, {}, &Piece::first);
    begins.push_back(worker == workers ? pieces.size() : static_cast<std::size_t>(it - pieces.begin()));
  }
  return begins;
}

std::shared_ptr<torch::nn::Module> replica_from(const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  // Clones are initialised before they are filled: what that draws is not taken from the caller's generator.
  const RandomDraws draws({});
  std::shared_ptr<torch::nn::Module> replica;
  try {
    replica = make();
  } catch (const c10::Error& error) {
    throw UsageError(
        fmt::format("the module cannot be cloned ({}); derive it from torch::nn::Cloneable, or give a factory",
                    error.what_without_backtrace()));
  }
  if (!replica) throw UsageError("the factory made no module");
  return replica;
}

// How many parts of gradients a replica keeps at most, until their neighbours in the tree are there.
std::size_t parts_at_once(int shards, int replicas) {
  std::size_t most = 0;
  for (int worker = 0; worker < replicas; ++worker) {
    const Slice own = chunk(static_cast<std::size_t>(shards), replicas, worker);
    // Those of the shards before, added up, and that of the next.
    for (std::size_t before = 0; before < own.count; ++before) {
      most = std::max(most, parts_of_shards(shards, static_cast<int>(own.first), static_cast<int>(before)).size() + 1);
    }
  }
  return most;
}

bool is_about(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const double difference = (a - b).norm().item<double>();
  return difference <= 1e-3 * std::max(a.norm().item<double>(), b.norm().item<double>());
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string text = fmt::format("'{}'", fmt::join(std::span(names).first(std::min(names.size(), kMost)), "', '"));
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

// Replica r's loss and gradients on the rows that replica 0 had, too.
void refuse_other_function(const std::vector<ModuleParameter>& parameters, const std::vector<ShardLoss>& losses,
                           const std::vector<std::vector<torch::Tensor>>& gradients, std::size_t r) {
  std::vector<std::string> other;
  std::vector<std::string> elsewhere;  // replica 0's loss depends on these, and that of r does not
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_about(gradients[0][i], gradients[r][i])) other.push_back(parameters[i].name());
    if (gradients[0][i].defined() && !gradients[r][i].defined()) elsewhere.push_back(parameters[i].name());
  }
  if (!elsewhere.empty()) {
    throw UsageError(
        fmt::format("replica {}: its loss does not depend on its own {}; the closure must use the module that it is "
                    "given, and that one its own members",
                    r, first_of(elsewhere)));
  }
  const double a = losses[0].loss;
  const double b = losses[r].loss;
  const bool is_same =
      a == b || std::abs(a - b) <= 1e-5 * std::max(std::abs(a), 1e-3) || (std::isnan(a) && std::isnan(b));
  if (is_same) return;
  throw UsageError(fmt::format(
      "replica {} is another function than replica 0: on the same rows its loss is {} and not {}; {}. Does the module "
      "have members that it does not register, or draw random numbers by itself?",
      r, b, a,
      other.empty() ? std::string("the gradients are all the same") : "the gradients differ of " + first_of(other)));
}

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
  validate(options.algorithm);
  validate(options.compression);
}

}  // namespace

struct DataParallelEngine::Inside : std::enable_shared_from_this<Inside> {
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<ModuleParameter> parameters;
    std::vector<std::shared_ptr<torch::nn::Module>> submodules;
    // Where a named algorithm or a compression is carried out.
    std::optional<Communicator> world;
    std::optional<GradientCompressor> compressor;
    std::optional<GradientBuffers> gradients;
    // Batch norm over all replicas talks apart from the gradients.
    std::optional<Communicator> norm_world;
  };

  Inside(std::shared_ptr<torch::nn::Module> its_module, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
         std::shared_ptr<torch::optim::Optimizer> its_optimizer, const DataParallelOptions& its_options);

  StepReport step(std::int64_t rows, const ReplicaLoss& loss);
  CompressionTally compression_tally() const;
  std::string describe() const;

  // --- set-up ---
  void share_memory();
  void make_worlds();
  void make_norm_worlds();
  void refuse_unless_apart() const;
  void compare_replicas(std::int64_t rows, const ReplicaLoss& loss);

  // --- a step ---
  void follow_the_module();
  Rows rows_of(int shard, std::int64_t rows) const;
  void compute(std::int64_t rows, const ReplicaLoss& loss);
  void run_replicas(const std::function<void(int)>& f);
  void run_shards(int worker, std::int64_t rows, const ReplicaLoss& loss);
  ShardLoss run_shard(Replica& replica, int shard, const Rows& rows, const ReplicaLoss& loss);
  StepReport weigh();
  void line_up_gradients();
  void fold_piece(const Piece& piece, std::byte* sum) const;
  void sum_slice(int worker);
  void exchange(double weight);
  void refuse_not_finite() const;
  void take_what_was_accumulated();
  double norm_of_sums() const;
  void apply(double scale);
  void update_slice(int worker, const std::vector<PreparedUpdate>& updates, double scale) const;
  void sum_and_update_slice(int worker, const std::vector<PreparedUpdate>& updates, double scale) const;

  bool is_exchanged_as_named() const {
    return !std::holds_alternative<NoCompression>(options.compression) ||
           !std::holds_alternative<Auto>(options.algorithm);
  }
  // Nothing has to be looked at between the sum and the update of a slice.
  bool is_in_one_pass() const {
    return !is_exchanged_as_named() && !options.refuse_nan && options.clip_norm == 0 && options.accumulate == 1 &&
           has_kernels(*optimizer);
  }
  std::span<const Piece> share_of(int worker) const {
    const auto w = static_cast<std::size_t>(worker);
    return std::span(pieces).subspan(begins[w], begins[w + 1] - begins[w]);
  }
  // A piece of gradients that are sorted by parameter; null where there is none.
  std::byte* place_in(const std::vector<torch::Tensor>& by_parameter, const Piece& piece) const {
    const torch::Tensor& tensor = by_parameter[piece.parameter];
    if (!tensor.defined()) return nullptr;
    return static_cast<std::byte*>(tensor.data_ptr()) + piece.slice.first * size_of(types[piece.parameter]);
  }

  std::shared_ptr<torch::nn::Module> module;
  std::vector<ModuleParameter> parameters;  // the module's own
  std::vector<torch::Tensor> tensors;       // of these
  std::vector<DataType> types;
  std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> shapes;  // sizes and strides
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  DataParallelOptions options;
  int shards = 1;
  Buffers buffers_mode = Buffers::follow_first;
  std::vector<Replica> replicas;
  std::unique_ptr<WorkerTeam> team;
  std::vector<std::shared_ptr<torch::nn::Module>> submodules;
  std::vector<Piece> pieces;
  std::vector<std::size_t> begins;
  std::optional<ShardBuffers> buffers;
  bool is_compared = false;

  std::uint64_t step_number = 0;
  // Of the step in progress.
  std::vector<ShardLoss> losses;              // by shard
  std::vector<ShardGradients> gradients;      // by worker
  std::vector<std::vector<ShardPart>> parts;  // by parameter, of all workers
  std::vector<torch::Tensor> sums;            // by parameter; undefined where nobody has a gradient
  std::vector<double> squares;                // by piece
  std::vector<char> is_finite;                // by piece
  // Of the steps before, that go into the same update.
  std::vector<torch::Tensor> accumulated;
  double accumulated_weight = 0;
  int accumulated_steps = 0;
};

DataParallelEngine::Inside::Inside(std::shared_ptr<torch::nn::Module> its_module,
                                   const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                                   std::shared_ptr<torch::optim::Optimizer> its_optimizer,
                                   const DataParallelOptions& its_options)
    : module(std::move(its_module)), optimizer(std::move(its_optimizer)), options(its_options) {
  if (!module) throw UsageError("there is no module to train");
  if (!optimizer) throw UsageError("there is no optimizer");
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer.get()) != nullptr)
    throw UsageError("LBFGS wants to evaluate the loss several times a step; a data-parallel step evaluates it once");
  refuse_unless_possible(options);
  set_up_blas();
  keep_freed_memory();
  if (options.replicas == 0) options.replicas = usable_core_count();
  shards = options.logical_shards == 0 ? options.replicas : options.logical_shards;
  if (shards < options.replicas) {
    throw UsageError(fmt::format("logical_shards: expected at least one for each of {} replicas, found {}",
                                 options.replicas, shards));
  }
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

  parameters = parameters_of(*module);
  if (parameters.empty()) throw UsageError("the module has no parameters");
  for (const ModuleParameter& parameter : parameters) {
    tensors.push_back(parameter.tensor());
    types.push_back(data_type_of_parameter(parameter.name(), parameter.tensor()));
    shapes.emplace_back(parameter.tensor().sizes().vec(), parameter.tensor().strides().vec());
  }
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    for (const torch::Tensor& its : group.params()) {
      if (std::ranges::none_of(tensors, [&](const torch::Tensor& tensor) { return tensor.is_same(its); }))
        throw UsageError("the optimizer has a parameter that is not the module's");
    }
  }
  // A clone of tied weights has them apart, each with a gradient of its own. So that all replicas add these up alike,
  // all are clones then.
  const bool is_tied = std::ranges::any_of(parameters, [](const ModuleParameter& one) { return one.names.size() > 1; });
  replicas.resize(static_cast<std::size_t>(options.replicas));
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    Replica& replica = replicas[r];
    replica.module = r == 0 && !is_tied ? module : replica_from(make);
    replica.submodules = replica.module->modules();
  }
  submodules = module->modules();
  share_memory();
  refuse_unless_apart();
  pieces = cut_into_pieces(parameters);
  begins = share_out(pieces, options.replicas);
  squares.resize(pieces.size());
  is_finite.resize(pieces.size());
  buffers.emplace(*module, shards, buffers_mode);
  for (const Replica& replica : replicas) buffers->refuse_unless_like(*replica.module);
  make_worlds();
  team = std::make_unique<WorkerTeam>(options.replicas, [] { use_one_thread(); });
}

void DataParallelEngine::Inside::share_memory() {
  for (Replica& replica : replicas) {
    if (replica.module == module) {
      replica.parameters = parameters;
    } else {
      replica.parameters = share_parameters(parameters, *replica.module);
    }
  }
}

// Gradients of two replicas must not meet in one variable, nor may one have parts that another lacks.
void DataParallelEngine::Inside::refuse_unless_apart() const {
  std::vector<const void*> seen;
  for (const Replica& replica : replicas) {
    if (replica.submodules.size() != submodules.size()) {
      throw UsageError(fmt::format("the module has {} modules in it, and a replica {}", submodules.size() - 1,
                                   replica.submodules.size() - 1));
    }
    std::vector<const void*> its;
    for (const ModuleParameter& parameter : replica.parameters) {
      for (const torch::Tensor& variable : parameter.variables) {
        if (std::ranges::find(seen, variable.unsafeGetTensorImpl()) != seen.end()) {
          throw UsageError(
              fmt::format("two replicas have the same '{}'; a clone, and what a factory makes, must have "
                          "parameters of its own",
                          parameter.name()));
        }
        its.push_back(variable.unsafeGetTensorImpl());
      }
    }
    seen.insert(seen.end(), its.begin(), its.end());
  }
}

void DataParallelEngine::Inside::make_worlds() {
  if (is_exchanged_as_named()) {
    if (std::ranges::adjacent_find(types, std::not_equal_to{}) != types.end())
      throw UsageError("a named algorithm or compression needs parameters of one type, found float32 and float64");
    std::vector<NamedShape> named;
    for (std::size_t i = 0; i < parameters.size(); ++i) named.push_back({parameters[i].name(), shapes[i].first});
    std::vector<std::unique_ptr<Transport>> world = make_threads_world(options.replicas);
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      replicas[r].world.emplace(std::move(world[r]), CommunicatorOptions{.deadline = options.deadline});
      replicas[r].gradients.emplace(named, types.front());
      if (!std::holds_alternative<NoCompression>(options.compression)) {
        replicas[r].compressor.emplace(options.compression,
                                       GradientCompressorOptions{.algorithm = options.algorithm, .seed = options.seed});
      }
    }
  }
  if (options.sync_batch_norm) make_norm_worlds();
}

void DataParallelEngine::Inside::make_norm_worlds() {
  std::vector<std::unique_ptr<Transport>> world = make_threads_world(options.replicas);
  for (std::size_t r = 0; r < replicas.size(); ++r)
    replicas[r].norm_world.emplace(std::move(world[r]), CommunicatorOptions{.deadline = options.deadline});
}

// Whoever trains the module may have frozen parameters, put parts of it into evaluation, or moved it elsewhere.
void DataParallelEngine::Inside::follow_the_module() {
  bool moved = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (data_type_of_parameter(parameters[i].name(), tensors[i]) != types[i])
      throw UsageError(
          fmt::format("the parameter '{}' has changed its type since training began", parameters[i].name()));
    if (tensors[i].sizes() != shapes[i].first || tensors[i].strides() != shapes[i].second)
      throw UsageError(
          fmt::format("the parameter '{}' has changed its shape since training began", parameters[i].name()));
    for (const Replica& replica : replicas) {
      for (torch::Tensor variable : replica.parameters[i].variables) {
        if (variable.data_ptr() != tensors[i].data_ptr()) moved = true;
        if (variable.requires_grad() != tensors[i].requires_grad())
          variable.set_requires_grad(tensors[i].requires_grad());
      }
    }
  }
  if (moved) share_memory();
  for (const Replica& replica : replicas) {
    for (std::size_t i = 0; i < submodules.size(); ++i) {
      if (replica.submodules[i]->is_training() != submodules[i]->is_training())
        replica.submodules[i]->train(submodules[i]->is_training());
    }
  }
}

// As split_batch deals them out.
Rows DataParallelEngine::Inside::rows_of(int shard, std::int64_t rows) const {
  return {.first = shard, .stride = shards, .count = shard < rows ? (rows - shard + shards - 1) / shards : 0};
}

ShardLoss DataParallelEngine::Inside::run_shard(Replica& replica, int shard, const Rows& rows,
                                                const ReplicaLoss& loss) {
  const RandomDraws draws({.seed = options.seed, .step = step_number, .shard = static_cast<std::uint64_t>(shard)});
  std::optional<SyncBatchNorm> norm;
  if (replica.norm_world) norm.emplace(*replica.norm_world);
  const auto computed = [&] {
    const Autocast autocast(options.autocast);
    return loss(*replica.module, rows);
  }();
  const ShardLoss weighed = detail::weigh(computed, shard, rows.count);
  // Where batch norm takes all rows together, those of others depend on rows that weigh nothing.
  if (weighed.weight > 0 || (options.sync_batch_norm && computed.loss.requires_grad()))
    detail::backward(computed, weighed.weight);
  return weighed;
}

void DataParallelEngine::Inside::run_shards(int worker, std::int64_t rows, const ReplicaLoss& loss) {
  Replica& replica = replicas[static_cast<std::size_t>(worker)];
  ShardGradients& mine = gradients[static_cast<std::size_t>(worker)];
  const Slice own = chunk(static_cast<std::size_t>(shards), options.replicas, worker);
  for (std::size_t s = own.first; s < own.end(); ++s) {
    const int shard = static_cast<int>(s);
    const Rows its_rows = rows_of(shard, rows);
    discard_gradients(replica.parameters);
    if (its_rows.count > 0) {
      buffers->take(shard, *replica.module);
      losses[s] = run_shard(replica, shard, its_rows, loss);
      buffers->keep(shard, *replica.module);
    }
    const bool counts = losses[s].weight > 0 || (options.sync_batch_norm && its_rows.count > 0);
    mine.add(shard, counts ? take_gradients(replica.parameters) : std::vector<torch::Tensor>());
  }
}

void DataParallelEngine::Inside::compute(std::int64_t rows, const ReplicaLoss& loss) {
  losses.assign(static_cast<std::size_t>(shards), {});
  gradients.assign(replicas.size(), ShardGradients(shards));
  run_replicas([this, rows, loss](int worker) { run_shards(worker, rows, loss); });
}

// On every worker, as the caller would: what libtorch keeps for its thread counts for all of them. Whoever misses the
// deadline goes on when this has thrown, so nothing that it uses may be on this stack.
void DataParallelEngine::Inside::run_replicas(const std::function<void(int)>& f) {
  const auto run_one = [self = shared_from_this(), callers = at::ThreadLocalState(), f](int worker) {
    const at::ThreadLocalStateGuard guard(callers);
    f(worker);
  };
  if (!options.sync_batch_norm) return team->run(run_one, options.deadline);

  // Who throws leaves the others waiting for it in a batch norm. They hear of it, and what they then throw counts less
  // than the reason.
  struct Errors {
    std::vector<std::exception_ptr> reasons, consequences;
  };
  const auto found = std::make_shared<Errors>();
  found->reasons.resize(replicas.size());
  found->consequences.resize(replicas.size());
  team->run(
      [this, run_one, found](int worker) {
        const auto w = static_cast<std::size_t>(worker);
        try {
          run_one(worker);
          return;
        } catch (const PeerError&) {
          found->consequences[w] = std::current_exception();
        } catch (...) {
          found->reasons[w] = std::current_exception();
        }
        replicas[w].norm_world->cancel("a replica failed");
      },
      options.deadline);
  const bool is_broken = std::ranges::any_of(replicas, [](const Replica& one) { return one.norm_world->broken(); });
  if (is_broken) make_norm_worlds();
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
  if (!(report.weight > 0)) throw UsageError("all rows of the batch weigh nothing together, so they have no mean loss");
  report.loss /= report.weight;
  if (std::ranges::none_of(sums, &torch::Tensor::defined)) {
    throw UsageError(
        "the loss does not depend on any parameter of the module; the closure must use the module that it is given");
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].defined() && tensors[i].requires_grad()) report.unused.push_back(parameters[i].name());
  }
  return report;
}

// Sums take the memory of the first gradient that is there.
void DataParallelEngine::Inside::line_up_gradients() {
  parts.assign(parameters.size(), {});
  sums.assign(parameters.size(), {});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const ShardGradients& worker : gradients) {
      worker.append_parts(i, parts[i]);
      if (!sums[i].defined()) sums[i] = worker.first_of(i);
    }
  }
}

StepReport DataParallelEngine::Inside::step(std::int64_t rows, const ReplicaLoss& loss) {
  if (team->is_stuck()) team->run([](int) {});  // says who
  if (rows < 1) throw UsageError("a batch without rows has no loss");
  if (!torch::GradMode::is_enabled() || c10::InferenceMode::is_enabled())
    throw UsageError("a step needs gradients, and the caller has them switched off (NoGradGuard or InferenceMode)");
  if (options.sync_batch_norm && rows < shards) {
    throw UsageError(
        fmt::format("sync_batch_norm: every replica needs a row, found {} rows for {} replicas", rows, shards));
  }
  refuse_unless_possible(*optimizer);
  follow_the_module();
  const OneThread one_thread;
  buffers->begin(*module);
  StepReport report;
  try {
    if (!is_compared) compare_replicas(rows, loss);
    compute(rows, loss);
    line_up_gradients();
    report = weigh();
    if (is_exchanged_as_named()) exchange(report.weight);
    if (!is_in_one_pass()) {
      team->run([&](int worker) { sum_slice(worker); }, options.deadline);
      if (options.refuse_nan) refuse_not_finite();
      take_what_was_accumulated();
    }
    const double weight = accumulated_weight + report.weight;
    report.updated = accumulated_steps + 1 == options.accumulate;
    if (report.updated) {
      double scale = 1 / weight;
      if (options.clip_norm > 0) {
        report.gradient_norm = norm_of_sums() * scale;
        if (report.gradient_norm > options.clip_norm) scale *= options.clip_norm / (report.gradient_norm + 1e-6);
      }
      apply(scale);
      accumulated.clear();
    } else {
      accumulated = std::move(sums);
    }
    accumulated_weight = report.updated ? 0 : weight;
    accumulated_steps = report.updated ? 0 : accumulated_steps + 1;
    buffers->finish(*module);
  } catch (...) {
    buffers->undo(*module);
    if (team->is_stuck()) throw;  // whoever is late still writes to the rest
    gradients.clear();
    sums.clear();
    throw;
  }
  ++step_number;
  gradients.clear();
  sums.clear();
  return report;
}

// What was not used in this step may have been in one before.
void DataParallelEngine::Inside::take_what_was_accumulated() {
  for (std::size_t i = 0; i < accumulated.size(); ++i) {
    if (!sums[i].defined()) sums[i] = accumulated[i];
  }
}

void DataParallelEngine::Inside::fold_piece(const Piece& piece, std::byte* sum) const {
  const DataType type = types[piece.parameter];
  std::vector<ShardPart> its = parts[piece.parameter];
  for (ShardPart& part : its) {
    if (part.data != nullptr) part.data = static_cast<const std::byte*>(part.data) + piece.slice.first * size_of(type);
  }
  fold_shards(type, shards, its, sum, piece.slice.count);
}

// This worker's slice of everybody's gradients, and of what was accumulated before; and a look at it.
void DataParallelEngine::Inside::sum_slice(int worker) {
  for (const Piece& piece : share_of(worker)) {
    const auto index = static_cast<std::size_t>(&piece - pieces.data());
    std::byte* sum = place_in(sums, piece);
    const DataType type = types[piece.parameter];
    is_finite[index] = 1;
    squares[index] = 0;
    const std::byte* before = accumulated_steps > 0 ? place_in(accumulated, piece) : nullptr;
    if (sum != nullptr) {
      if (!is_exchanged_as_named()) fold_piece(piece, sum);
      if (options.refuse_nan) is_finite[index] = all_finite(type, sum, piece.slice.count) ? 1 : 0;
      if (before != nullptr) fold(ReduceOp::sum, type, sum, before, sum, piece.slice.count);
    }
    const std::byte* whole = sum != nullptr ? sum : before;
    if (options.clip_norm > 0 && whole != nullptr) squares[index] = sum_of_squares(type, whole, piece.slice.count);
  }
}

// The named algorithm or compression, over every replica's gradients. Their sum is then replica 0's, in its buffers;
// all have the same.
void DataParallelEngine::Inside::exchange(double weight) {
  // A compression keeps what it leaves out, so nothing that is refused may get into it.
  std::vector<std::string> not_finite(replicas.size());
  team->run(
      [&](int worker) {
        const auto w = static_cast<std::size_t>(worker);
        GradientBuffers& mine = *replicas[w].gradients;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const Array array = mine[i];
          const torch::Tensor gradient = gradients[w].first_of(i);
          if (!gradient.defined()) {
            std::fill_n(array.data(), array.bytes(), std::byte{0});
            continue;
          }
          if (options.refuse_nan && not_finite[w].empty() && !all_finite(types[i], gradient.data_ptr(), array.length()))
            not_finite[w] = parameters[i].name();
          // A mean of what is scaled so is that of the whole batch; without a compression sums are as good.
          if (replicas[w].compressor) gradient.mul_(static_cast<double>(replicas.size()) / weight);
          std::memcpy(array.data(), gradient.data_ptr(), array.bytes());
        }
      },
      options.deadline);
  for (std::size_t w = 0; w < replicas.size(); ++w) {
    if (!not_finite[w].empty()) refuse_gradient(not_finite[w]);
  }
  team->run(
      [&](int worker) {
        Replica& replica = replicas[static_cast<std::size_t>(worker)];
        if (replica.compressor) {
          replica.compressor->mean(*replica.world, *replica.gradients);
        } else {
          all_reduce(*replica.world, replica.gradients->all(), {.algorithm = options.algorithm, .op = ReduceOp::sum});
        }
      },
      options.deadline);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!sums[i].defined()) continue;
    std::memcpy(sums[i].data_ptr(), (*replicas.front().gradients)[i].data(), (*replicas.front().gradients)[i].bytes());
    if (replicas.front().compressor) sums[i].mul_(weight);
  }
}

void DataParallelEngine::Inside::refuse_not_finite() const {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (is_finite[i] == 0) refuse_gradient(parameters[pieces[i].parameter].name());
  }
}

double DataParallelEngine::Inside::norm_of_sums() const {
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

void DataParallelEngine::Inside::apply(double scale) {
  if (!has_kernels(*optimizer)) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      tensors[i].mutable_grad() = sums[i].defined() ? sums[i].mul(scale) : torch::Tensor();
    optimizer->step();
    for (const torch::Tensor& tensor : tensors) tensor.mutable_grad() = torch::Tensor();
    return;
  }
  std::vector<bool> has_gradient;
  for (const torch::Tensor& sum : sums) has_gradient.push_back(sum.defined());
  const std::vector<PreparedUpdate> updates = prepare_updates(*optimizer, tensors, has_gradient);
  team->run(
      [&](int worker) {
        is_in_one_pass() ? sum_and_update_slice(worker, updates, scale) : update_slice(worker, updates, scale);
      },
      options.deadline);
}

void DataParallelEngine::Inside::update_slice(int worker, const std::vector<PreparedUpdate>& updates,
                                              double scale) const {
  for (const Piece& piece : share_of(worker)) {
    const PreparedUpdate& prepared = updates[piece.parameter];
    if (prepared.is_due) update(prepared, piece.slice, place_in(sums, piece), scale);
  }
}

void DataParallelEngine::Inside::sum_and_update_slice(int worker, const std::vector<PreparedUpdate>& updates,
                                                      double scale) const {
  std::vector<std::byte> sum(kPieceLength * sizeof(double));
  for (const Piece& piece : share_of(worker)) {
    const PreparedUpdate& prepared = updates[piece.parameter];
    if (!prepared.is_due) continue;
    fold_piece(piece, sum.data());
    update(prepared, piece.slice, sum.data(), scale);
  }
}

// The module that somebody wrote may be one whose clones are not the same function: a member that is not registered, a
// factory that makes another one. So all replicas compute the loss of the same rows once, and must come to the same.
void DataParallelEngine::Inside::compare_replicas(std::int64_t rows, const ReplicaLoss& loss) {
  is_compared = replicas.size() == 1;
  if (is_compared) return;
  const Rows same = rows_of(0, rows);
  const auto found = std::make_shared<std::vector<ShardLoss>>(replicas.size());
  std::vector<std::vector<torch::Tensor>> found_gradients(replicas.size());
  // One whose closure uses another replica's module leaves its gradients there, so nobody takes any before all are
  // through.
  for (const Replica& replica : replicas) discard_gradients(replica.parameters);
  run_replicas([this, found, same, loss](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    buffers->take(0, *replicas[w].module);
    (*found)[w] = run_shard(replicas[w], 0, same, loss);
  });
  for (std::size_t r = 0; r < replicas.size(); ++r) found_gradients[r] = take_gradients(replicas[r].parameters);
  buffers->undo(*module);
  for (std::size_t r = 1; r < replicas.size(); ++r) refuse_other_function(parameters, *found, found_gradients, r);
  is_compared = found->front().weight > 0;  // otherwise there was nothing to compare
}

CompressionTally DataParallelEngine::Inside::compression_tally() const {
  CompressionTally all{options.compression, {}, {}};
  for (const Replica& replica : replicas) {
    if (!replica.compressor) continue;
    const CompressionTally its = replica.compressor->tally();
    all.gradients.value += its.gradients.value;
    all.sent.value += its.sent.value;
  }
  return all;
}

std::string DataParallelEngine::Inside::describe() const {
  std::string text =
      fmt::format("{} {}, threads of one process; ", options.replicas, options.replicas == 1 ? "replica" : "replicas");
  if (is_exchanged_as_named()) {
    const bool is_compressed = !std::holds_alternative<NoCompression>(options.compression);
    text += fmt::format("gradients all-reduced by {}{}, then updated slice by slice", to_string(options.algorithm),
                        is_compressed ? fmt::format(", compressed by {}", to_string(options.compression)) : "");
  } else if (is_in_one_pass()) {
    text += "each thread sums its slice of all gradients and updates it in the same pass";
  } else {
    text += "each thread sums its slice of all gradients, looks at it, and updates it";
  }
  if (!has_kernels(*optimizer)) text += "; the optimizer is torch's own and steps once, on one thread";
  if (options.logical_shards > 0) {
    std::size_t bytes = 0;
    for (const torch::Tensor& tensor : tensors) bytes += tensor.nbytes();
    // A worker keeps a part for each subtree that it has not completed yet.
    const std::size_t most = parts_at_once(shards, options.replicas);
    text += fmt::format(
        "; {} logical shards, the same bits on any number of replicas: {} passes of {} of the batch a "
        "replica, and up to {} of gradients each",
        shards, (shards + options.replicas - 1) / options.replicas, fmt::format("1/{}", shards),
        to_string(Bytes{bytes * most}));
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
CompressionTally DataParallelEngine::compression_tally() const { return inside_->compression_tally(); }
std::string DataParallelEngine::describe() const { return inside_->describe(); }

}  // namespace tutti::detail
