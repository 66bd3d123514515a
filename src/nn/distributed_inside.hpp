// What a DistributedModule is made of: the module's hooks, and rounds in which all ranks exchange buckets of gradients.
//
// A round, on every rank: begin_round; while backward goes on, on_gradient for each parameter, and as soon as a bucket
// is full, on a thread of its own, exchange_header (weights, losses, who takes part how) and the buckets in order;
// finish_round, with what is missing, the tail (who failed, which parameters were used) and the buffers. Whatever goes
// wrong on a rank, it makes these calls, so that the others hear of it and nobody waits. distributed_rounds.cpp has the
// rounds, distributed_module.cpp what computes losses and gradients for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <tutti/base/error.hpp>
#include <tutti/nn/distributed_module.hpp>

#include "gradient_buckets.hpp"
#include "module_agreement.hpp"
#include "module_parameters.hpp"
#include "shard_buffers.hpp"
#include "shard_gradients.hpp"

namespace tutti {

struct DistributedModule::Inside {
  using GradientBucket = detail::GradientBucket;
  using GradientBuckets = detail::GradientBuckets;
  using ModuleParameter = detail::ModuleParameter;
  using ShardGradients = detail::ShardGradients;
  using ShardLoss = detail::ShardLoss;

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
  void refuse_other_parameters() const;
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
  std::int64_t batch_rows = 0;  // of a batch that all ranks bring
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

}  // namespace tutti
