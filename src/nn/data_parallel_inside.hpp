// What a DataParallel is made of: replicas on threads, and steps in which all of them take part.
//
// A step: every worker computes its shards (run_shards); gradients are lined up by parameter; each worker adds up its
// slice of everybody's and looks at it (sum_slice); where there are other processes, or a named algorithm or
// compression, sums are exchanged in between; then each worker updates its slice. data_parallel.cpp has the steps,
// data_parallel_state.cpp what is saved of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/nn/data_parallel.hpp>
#include <tutti/sync/slice_plan.hpp>
#include <tutti/sync/worker_team.hpp>

#include "kernel_optimizer.hpp"
#include "named_exchange.hpp"
#include "private_parameters.hpp"
#include "process_exchange.hpp"
#include "replicas.hpp"
#include "shard_buffers.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

struct DataParallelEngine::Inside : std::enable_shared_from_this<Inside> {
  using SpanKind = event::SpanEnded::Kind;
  using Clock = std::chrono::steady_clock;

  Inside(std::shared_ptr<torch::nn::Module> module, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
         std::shared_ptr<torch::optim::Optimizer> its_optimizer, const DataParallelOptions& its_options);

  StepReport step(std::int64_t rows, const ReplicaLoss& loss);
  std::string describe() const;
  void save(ParameterSet& state);
  void restore(const ParameterSet& state);

  // --- set-up ---
  void refuse_unless_ours() const;
  void make_norm_worlds();
  void compare_replicas(std::int64_t rows, const ReplicaLoss& loss);

  // --- a step ---
  void compute(std::int64_t rows, const ReplicaLoss& loss);
  void run_replicas(const std::function<void(int)>& f);
  void run_workers(const std::function<void(int)>& f);
  // The same, as a stretch of time with a name.
  void run_timed(SpanKind kind, const char* name, const std::function<void(int)>& f);
  void run_shards(int worker, std::int64_t rows, const ReplicaLoss& loss);
  ShardLoss run_shard(std::size_t worker, int shard, const Rows& rows, const ReplicaLoss& loss);
  void agree_with_processes();
  StepReport weigh();
  void line_up_gradients();
  void refuse_gradients_elsewhere() const;
  void fold_piece(const SlicePiece& piece, std::byte* sum) const;
  void sum_slice(int worker);
  void exchange(double weight);
  void exchange_with_processes(double weight);
  void look_at_private(int worker);
  void refuse_not_finite() const;
  void refuse_private_not_finite() const;
  void take_what_was_accumulated();
  void accumulate_sums();
  void fail(const std::string& why, bool fails_on_all);
  double norm_of_sums() const;
  void apply(double scale);
  void update_slice(int worker, double scale);
  void sum_and_update_slice(int worker, double scale) const;
  void tell_spans(StepReport& report);
  void note(std::size_t worker, SpanKind kind, const char* name, Clock::time_point begin) {
    spans[worker].push_back({first_replica + static_cast<int>(worker), kind, name, begin, Clock::now()});
  }

  bool is_exchanged_as_named() const {
    return !std::holds_alternative<NoCompression>(options.compression) ||
           !std::holds_alternative<Auto>(options.algorithm);
  }
  // Others are there, and hear nothing of a step.
  bool is_alone() const { return options.world != nullptr && options.steps_alone; }
  // Sums are in one place before anybody looks at them.
  bool is_exchanged() const { return named || processes; }
  // Nothing has to be looked at between the sum and the update of a slice.
  bool is_in_one_pass() const {
    return !is_exchanged() && !options.refuse_nan && options.clip_norm == 0 && options.accumulate == 1 &&
           has_kernels(*optimizer) && !own;
  }
  // Nobody wants a sum in one place: it is updated with, piece by piece, and dropped.
  bool is_summed_in_pieces() const { return !is_exchanged() && options.accumulate == 1 && has_kernels(*optimizer); }
  // A piece of a gradient; null where there is none.
  std::byte* place_in(const torch::Tensor& gradient, const SlicePiece& piece) const {
    if (!gradient.defined()) return nullptr;
    return static_cast<std::byte*>(gradient.data_ptr()) + piece.slice.first * size_of(replicas->types()[piece.array]);
  }
  // Where a worker puts its piece of a sum: into memory of its own if that will do, which its core has and which no
  // other core has to give up or to get back.
  std::byte* place_of_sum(int worker, const SlicePiece& piece) const {
    const torch::Tensor own_gradient =
        is_summed_in_pieces() ? gradients[static_cast<std::size_t>(worker)].first_of(piece.array) : torch::Tensor();
    return place_in(own_gradient.defined() ? own_gradient : sums[piece.array], piece);
  }
  const std::string& name_of(std::size_t parameter) const { return replicas->parameters()[parameter].name(); }
  int process_count() const { return options.world == nullptr ? 1 : options.world->size(); }
  int process() const { return options.world == nullptr ? 0 : options.world->rank().value; }
  // Those of a worker of this process.
  Slice shards_of(int worker) const {
    const Slice its = chunk(own_shards.count, workers, worker);
    return {own_shards.first + its.first, its.count};
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  DataParallelOptions options;
  int shards = 1;         // of all processes
  int workers = 1;        // of this process
  int first_replica = 0;  // of this process's, among all
  Slice own_shards;
  Buffers buffers_mode = Buffers::follow_first;
  std::optional<Replicas> replicas;
  std::unique_ptr<WorkerTeam> team;
  std::optional<SlicePlan> plan;  // of shared parameters
  std::vector<std::size_t> pieces_by_name;
  std::optional<ShardBuffers> buffers;
  std::optional<NamedExchange> named;        // where an algorithm or a compression was, and one process
  std::optional<ProcessExchange> processes;  // where there are several, and take steps together
  std::optional<PrivateParameters> own;      // where there are any
  std::vector<Communicator> norm_worlds;     // batch norm over all replicas talks apart from the gradients
  bool is_compared = false;

  std::uint64_t step_number = 0;
  std::atomic<bool> is_stepping{false};
  // Of the step in progress. Not on the caller's stack: whoever misses the deadline still uses it.
  std::vector<ShardLoss> losses;              // by shard, of all processes
  std::vector<ShardGradients> gradients;      // by worker
  std::vector<std::vector<ShardPart>> parts;  // by parameter, of all workers
  std::vector<bool> is_used;                  // by parameter: has a gradient, here or in another process
  std::vector<torch::Tensor> sums;            // by parameter; undefined where nobody has a gradient, or it is private
  std::vector<double> squares;                // by piece
  std::vector<char> is_finite;                // by piece
  std::vector<std::string> not_finite;        // by worker: a parameter
  std::vector<PreparedUpdate> updates;        // by parameter
  std::vector<std::vector<StepSpan>> spans;   // by worker
  Clock::time_point step_began;
  // Of the steps before, that go into the same update.
  std::vector<torch::Tensor> accumulated;
  double accumulated_weight = 0;
  int accumulated_steps = 0;
};

}  // namespace tutti::detail
