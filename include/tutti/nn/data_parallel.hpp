// Makes a torch::nn::Module data-parallel: replicas that are threads of this process.
//
//   auto net = std::make_shared<Net>();
//   tutti::DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2});
//   for (auto& batch : *loader) {
//     loss = parallel.step(batch, [](Net& net, auto& rows) {
//       return cross_entropy(net.forward(rows.data), rows.target);
//     });
//   }
//
// A step gives every replica its rows, runs forward and backward on all of them at once, and updates the parameters
// with the gradient of the whole batch. Parameters and the optimizer's state exist once, in `net` and in optimizer():
// replicas read the same memory, and after backward each thread sums its slice of everybody's gradients and updates
// that slice.
//
// The closure is copied, and called on several threads at once, each with a replica and its rows. It returns a loss,
// the mean over its rows; or a WeightedLoss, where something else than rows counts (tokens, class weights, rows that
// are ignored).
//
// A step that throws has changed nothing: not the parameters, nor the optimizer's state. One thread at a time uses a
// DataParallel. docs/data_parallel.md tells the rest.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/nn/buffers.hpp>
#include <tutti/nn/rows.hpp>
#include <tutti/nn/step_span.hpp>
#include <tutti/nn/weighted_loss.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/sync/gradient_compressor.hpp>

namespace tutti {

struct DataParallelOptions {
  int replicas = 0;  // as many as this process may use cores, where 0
  // Processes that train together, one rank each: `replicas` is then the number of all of them, dealt out evenly. All
  // make the same steps, with the same options; each has the module, and brings of a batch the rows of its own shards
  // (own_shards). Sums of one process are made as ever, and the algorithm or compression is carried out between
  // processes. A step that fails on one of them fails on all, and breaks the world, which must outlive this.
  Communicator* world = nullptr;
  // By name, parameters and buffers that each replica has to itself: they are never averaged, but follow the mean
  // gradient of the replica's own rows. The module's own are those of its process's first replica, buffers those of the
  // first of all.
  std::function<bool(const std::string& name)> is_private = {};
  // With a world, and all parameters private: processes say nothing to each other in a step, for whoever brings them
  // together now and then. report() has what this process's replicas have computed, rows that weigh nothing all over
  // the process are no error, and buffers are those of its first replica until share_buffers().
  bool steps_alone = false;
  // Auto sums slices and updates them in one go. Another algorithm, or a compression, is carried out as named, on every
  // replica's gradients.
  AllReduceStrategy algorithm = Auto{};
  Compression compression = NoCompression{};
  // The batch is dealt out to so many shards, whoever computes them: the same bits on any number of replicas. Its price
  // is in describe(). One per replica, where 0.
  int logical_shards = 0;
  std::optional<Buffers> buffers = {};   // per_shard with logical shards, otherwise follow_first
  bool sync_batch_norm = false;          // batch norm takes its statistics over all replicas
  double clip_norm = 0;                  // the largest norm of the whole gradient; 0 is none
  int accumulate = 1;                    // so many steps' gradients go into one update
  bool refuse_nan = true;                // a gradient that is not finite is an error, and nothing is written
  bool autocast = false;                 // bfloat16 where libtorch thinks fit
  std::uint64_t seed = 0;                // of what a step draws: dropout and the like
  Duration deadline = kDefaultDeadline;  // for a step
};

struct StepReport {
  double loss = 0;                       // the mean over all rows, by weight
  double weight = 0;                     // what they weigh together
  bool updated = false;                  // false while gradients are accumulated
  double gradient_norm = 0;              // with clip_norm: before it was clipped
  std::vector<std::string> unused = {};  // parameters that the loss did not depend on
  std::vector<StepSpan> spans = {};      // of this process's replicas, one replica after the other
};

// Logical shards, or replicas where there are none, that a process computes: those from `first` on.
struct OwnShards {
  int first = 0;
  int count = 0;
  int of = 0;
};

namespace detail {

// On replica r, the loss of these rows.
using ReplicaLoss = std::function<WeightedLoss(torch::nn::Module&, const Rows&)>;

class DataParallelEngine {
 public:
  DataParallelEngine(std::shared_ptr<torch::nn::Module> module,
                     const std::function<std::shared_ptr<torch::nn::Module>()>& make_replica,
                     std::shared_ptr<torch::optim::Optimizer> optimizer, const DataParallelOptions& options);
  ~DataParallelEngine();
  DataParallelEngine(DataParallelEngine&&) noexcept;
  DataParallelEngine& operator=(DataParallelEngine&&) noexcept;

  StepReport step(std::int64_t rows, const ReplicaLoss& loss);
  torch::optim::Optimizer& optimizer();
  std::uint64_t steps_taken() const;
  void go_on_after(std::uint64_t steps);
  OwnShards own_shards() const;
  std::vector<std::pair<std::string, torch::Tensor>> private_parameters(int replica) const;
  void share_buffers();
  void save(ParameterSet& state);
  void restore(const ParameterSet& state);
  CompressionTally compression_tally() const;
  std::string describe() const;

  struct Inside;

 private:
  std::shared_ptr<Inside> inside_;  // a replica that misses the deadline has it, too
};

// Makes modules. A holder of a module looks like a function and is none: asking what it returns does not compile.
template <typename Factory, typename Net>
concept MakerOf = !std::is_base_of_v<torch::detail::ModuleHolderIndicator, Factory> &&
                  std::is_invocable_r_v<std::shared_ptr<Net>, Factory&>;

// Its parameters; a UsageError where there is no module.
std::vector<torch::Tensor> parameters_to_train(const torch::nn::Module* module);

// The torch optimizer that takes such options.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                        const torch::optim::OptimizerOptions& options);

}  // namespace detail

template <typename Net>
class DataParallel {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  // Replicas are clones of the module.
  DataParallel(std::shared_ptr<Net> net, const torch::optim::OptimizerOptions& optimizer,
               const DataParallelOptions& options = {})
      : DataParallel(net, ParamGroups{torch::optim::OptimizerParamGroup(detail::parameters_to_train(net.get()))},
                     optimizer, options) {}
  // Groups of parameters; options that a group does not have are the optimizer's.
  DataParallel(std::shared_ptr<Net> net, ParamGroups groups, const torch::optim::OptimizerOptions& optimizer,
               const DataParallelOptions& options = {})
      : DataParallel(net, detail::make_optimizer(std::move(groups), optimizer), options) {}
  // Any optimizer over the module's parameters. One that tutti has no kernel for steps once, on the caller's thread.
  DataParallel(std::shared_ptr<Net> net, std::shared_ptr<torch::optim::Optimizer> optimizer,
               const DataParallelOptions& options = {})
      : net_(std::move(net)),
        engine_(
            net_, [this] { return net_->clone(); }, std::move(optimizer), options) {}

  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& net, const torch::optim::OptimizerOptions& optimizer,
               const DataParallelOptions& options = {})
      : DataParallel(net.ptr(), optimizer, options) {}

  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& net, ParamGroups groups,
               const torch::optim::OptimizerOptions& optimizer, const DataParallelOptions& options = {})
      : DataParallel(net.ptr(), std::move(groups), optimizer, options) {}
  template <typename Contained>
  DataParallel(const torch::nn::ModuleHolder<Contained>& net, std::shared_ptr<torch::optim::Optimizer> optimizer,
               const DataParallelOptions& options = {})
      : DataParallel(net.ptr(), std::move(optimizer), options) {}

  // Replicas are what the factory makes: for modules that cannot be cloned. The parameters are those of the first.
  template <detail::MakerOf<Net> Factory>
  DataParallel(Factory factory, const torch::optim::OptimizerOptions& optimizer,
               const DataParallelOptions& options = {})
      : net_(factory()),
        engine_(net_, factory,
                detail::make_optimizer({torch::optim::OptimizerParamGroup(detail::parameters_to_train(net_.get()))},
                                       optimizer),
                options) {}

  // The same with groups of parameters, or any optimizer: make_optimizer(Net&) makes it for the first replica.
  template <detail::MakerOf<Net> Factory, typename MakeOptimizer>
  requires std::is_invocable_r_v<std::shared_ptr<torch::optim::Optimizer>, MakeOptimizer&, Net&> DataParallel(
      Factory factory, MakeOptimizer make_optimizer, const DataParallelOptions& options = {})
      : net_(factory()), engine_(net_, factory, net_ ? make_optimizer(*net_) : nullptr, options) {}

  // The loss of the batch, the mean over its rows by weight, before the update.
  template <typename Batch, typename Closure>
  double step(const Batch& batch, Closure&& closure) {
    // Copies: a replica that misses the deadline still computes when this has thrown.
    const auto loss = [batch, own = std::make_shared<std::decay_t<Closure>>(std::forward<Closure>(closure))](
                          torch::nn::Module& replica, const Rows& rows) -> WeightedLoss {
      auto mine = slice_rows(batch, rows);
      return (*own)(dynamic_cast<Net&>(replica), mine);  // Module is a virtual base
    };
    report_ = engine_.step(row_count(batch), loss);
    return report_.loss;
  }

  // Of the last step.
  const StepReport& report() const { return report_; }

  const std::shared_ptr<Net>& module() const { return net_; }
  // For schedules, and to save and load its state. Its own step() is not for the caller.
  torch::optim::Optimizer& optimizer() { return engine_.optimizer(); }
  // Steps taken, and to go on after so many: what a step draws (dropout and the like) follows from its number.
  std::uint64_t steps_taken() const { return engine_.steps_taken(); }
  void go_on_after(std::uint64_t steps) { engine_.go_on_after(steps); }
  // Which shards this process computes: row i of a batch belongs to shard i mod own_shards().of. slice_rows(batch,
  // rows) is asked for `rows` of the batch of all processes, and row_count(batch) says how many these are.
  OwnShards own_shards() const { return engine_.own_shards(); }
  // Those that a replica of this process has to itself, the first of the process being 0: for whoever brings replicas
  // together between steps. Their memory stays the same.
  std::vector<std::pair<std::string, torch::Tensor>> private_parameters(int replica) const {
    return engine_.private_parameters(replica);
  }
  // Where processes take steps alone: all call it, and hear of everybody's buffers, as after a step that is taken
  // together. Otherwise it does nothing. save() comes after it.
  void share_buffers() { engine_.share_buffers(); }
  // For checkpoints: all that the next step depends on, added to `state` under names of their own: parameters, buffers
  // and what the optimizer keeps; private ones of all replicas, buffers of all shards, what was accumulated or
  // compressed away. restore() goes on from there, also with another number of replicas; arrays that it does not know
  // are no concern of its. With a world all processes call both, save() fills rank 0's state only, and restore() is
  // given the same state everywhere. A UsageError names what does not fit; nothing was changed then.
  void save(ParameterSet& state) { engine_.save(state); }
  void restore(const ParameterSet& state) { engine_.restore(state); }
  // What the compression saved up to now, over all replicas; with a world, over this process. Nothing travelled where
  // there is none.
  CompressionTally compression_tally() const { return engine_.compression_tally(); }
  // In one line: how many replicas, which path the gradients take, and what it costs.
  std::string describe() const { return engine_.describe(); }

 private:
  std::shared_ptr<Net> net_;
  detail::DataParallelEngine engine_;
  StepReport report_;
};

template <typename Contained>
DataParallel(const torch::nn::ModuleHolder<Contained>&, const torch::optim::OptimizerOptions&,
             const DataParallelOptions& = {}) -> DataParallel<Contained>;
template <typename Contained>
DataParallel(const torch::nn::ModuleHolder<Contained>&, std::vector<torch::optim::OptimizerParamGroup>,
             const torch::optim::OptimizerOptions&, const DataParallelOptions& = {}) -> DataParallel<Contained>;
template <typename Contained>
DataParallel(const torch::nn::ModuleHolder<Contained>&, std::shared_ptr<torch::optim::Optimizer>,
             const DataParallelOptions& = {}) -> DataParallel<Contained>;

}  // namespace tutti
