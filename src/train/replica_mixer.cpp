#include "replica_mixer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/chunk.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/coordinate/outer_optimizer.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/sync/worker_team.hpp>

namespace tutti::detail {
namespace {

// Above those of collectives, which count their calls from kFirstInternalTag on.
constexpr std::uint64_t kFirstTag = kFirstInternalTag + (std::uint64_t{1} << 62);

// All parameters of a replica, one array behind the other.
class FlatParameters {
 public:
  explicit FlatParameters(const std::vector<torch::Tensor>& tensors) {
    for (const torch::Tensor& tensor : tensors) {
      types_.push_back(tensor.scalar_type() == torch::kFloat64 ? DataType::float64 : DataType::float32);
      if (types_.back() == DataType::float32 && tensor.scalar_type() != torch::kFloat32)
        throw UsageError(fmt::format("replicas with parameters of their own need float32 or float64, found {}",
                                     c10::toString(tensor.scalar_type())));
      firsts_.push_back(bytes_);
      lengths_.push_back(static_cast<std::size_t>(tensor.numel()));
      const std::size_t bytes = lengths_.back() * size_of(types_.back());
      bytes_of_numbers_ += bytes;
      bytes_ += (bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);  // any element may follow
    }
  }

  std::size_t arrays() const { return types_.size(); }
  std::size_t bytes() const { return bytes_; }
  // Without what fills the gaps between arrays.
  std::size_t bytes_of_numbers() const { return bytes_of_numbers_; }
  DataType type(std::size_t array) const { return types_[array]; }
  std::size_t length(std::size_t array) const { return lengths_[array]; }
  std::span<std::byte> bytes_of(std::span<std::byte> flat, std::size_t array) const {
    return flat.subspan(firsts_[array], lengths_[array] * size_of(types_[array]));
  }
  template <typename T>
  std::span<T> values(std::span<std::byte> flat, std::size_t array) const {
    return {reinterpret_cast<T*>(flat.data() + firsts_[array]), lengths_[array]};
  }
  template <typename T>
  std::span<const T> values(std::span<const std::byte> flat, std::size_t array) const {
    return {reinterpret_cast<const T*>(flat.data() + firsts_[array]), lengths_[array]};
  }

  void pack(const std::vector<torch::Tensor>& tensors, std::span<std::byte> flat) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const torch::Tensor its = tensors[i].detach().contiguous();
      std::memcpy(flat.data() + firsts_[i], its.data_ptr(), lengths_[i] * size_of(types_[i]));
    }
  }
  void unpack(std::span<const std::byte> flat, const std::vector<torch::Tensor>& tensors) const {
    const torch::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].is_contiguous()) {
        std::memcpy(tensors[i].data_ptr(), flat.data() + firsts_[i], lengths_[i] * size_of(types_[i]));
        continue;
      }
      auto* data = const_cast<std::byte*>(flat.data()) + firsts_[i];  // only read
      tensors[i].copy_(torch::from_blob(data, tensors[i].sizes(), tensors[i].options().requires_grad(false)));
    }
  }

 private:
  std::vector<DataType> types_;
  std::vector<std::size_t> lengths_;
  std::vector<std::size_t> firsts_;  // bytes
  std::size_t bytes_ = 0;
  std::size_t bytes_of_numbers_ = 0;
};

using Flat = std::vector<std::byte>;

// sum over others of weight times theirs, in their order and in double.
struct Weighted {
  const Flat* flat = nullptr;
  double weight = 0;
};

template <typename T>
void add_weighted(const FlatParameters& layout, std::size_t array, const std::vector<Weighted>& parts,
                  std::span<T> sum) {
  std::array<double, 2048> block;
  for (std::size_t first = 0; first < sum.size(); first += block.size()) {
    const std::size_t count = std::min(block.size(), sum.size() - first);
    std::fill_n(block.begin(), count, 0.0);
    for (const Weighted& part : parts) {
      const T* its = layout.values<T>(std::span<const std::byte>(*part.flat), array).data() + first;
      for (std::size_t i = 0; i < count; ++i) block[i] += part.weight * static_cast<double>(its[i]);
    }
    for (std::size_t i = 0; i < count; ++i) sum[first + i] = static_cast<T>(block[i]);
  }
}

// What both kinds of mixing stand on.
class FlatReplicas {
 public:
  FlatReplicas(OwnParameters own, Duration deadline)
      : own_(std::move(own)),
        layout_(own_.tensors.front()),
        flats_(own_.tensors.size(), Flat(layout_.bytes())),
        deadline_(deadline),
        team_(static_cast<int>(own_.tensors.size()), [] { use_one_thread(); }) {}

  const OwnParameters& own() const { return own_; }
  const FlatParameters& layout() const { return layout_; }
  std::vector<Flat>& flats() { return flats_; }
  Duration deadline() const { return deadline_; }

  void on_each(const std::function<void(std::size_t)>& f) {
    team_.run([&](int worker) { f(static_cast<std::size_t>(worker)); }, deadline_);
  }
  void pack_all() {
    on_each([this](std::size_t r) { layout_.pack(own_.tensors[r], flats_[r]); });
  }

  // Sums over all replicas of all processes, or what there is of them here.
  std::vector<std::vector<double>> sums_here() const {
    std::vector<std::vector<double>> sums;
    for (std::size_t i = 0; i < layout_.arrays(); ++i) {
      std::vector<double>& sum = sums.emplace_back(layout_.length(i));
      dispatch(layout_.type(i), [&]<typename T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<T>) {
          for (const Flat& flat : flats_) {
            const std::span<const T> its = layout_.values<T>(std::span<const std::byte>(flat), i);
            for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += static_cast<double>(its[j]);
          }
        }
      });
    }
    return sums;
  }

  ParameterSet mean() {
    pack_all();
    ParameterSet set = empty_set();
    std::vector<std::vector<double>> sums = sums_here();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (own_.world != nullptr) all_reduce(*own_.world, sums[i], {.deadline = deadline_});
      dispatch(layout_.type(i), [&]<typename T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<T>) {
          const std::span<T> to = set[i].values<T>();
          for (std::size_t j = 0; j < to.size(); ++j) to[j] = static_cast<T>(sums[i][j] / own_.replicas);
        }
      });
    }
    return set;
  }

  ParameterSet empty_set() const {
    ParameterSet set;
    for (std::size_t i = 0; i < own_.names.size(); ++i) {
      const auto sizes = own_.tensors.front()[i].sizes();
      set.add({own_.names[i], Shape(sizes.begin(), sizes.end()), layout_.type(i)});
    }
    return set;
  }

 private:
  OwnParameters own_;
  FlatParameters layout_;
  std::vector<Flat> flats_;  // by replica of this process
  Duration deadline_;
  WorkerTeam team_;
};

// --- Decentralized ---

class NeighbourMixer final : public ReplicaMixer {
 public:
  NeighbourMixer(OwnParameters own, const strategy::Decentralized& strategy, std::uint64_t seed, Duration deadline)
      : replicas_(std::move(own), deadline),
        topology_(strategy.topology),
        mixing_(strategy.topology, {.replicas = replicas_.own().replicas, .seed = seed}) {
    const OwnParameters& its = replicas_.own();
    for (std::size_t r = 0; r < its.tensors.size(); ++r) rows_.push_back(mixing_.row(its.first + static_cast<int>(r)));
    heard_ = mixing_.heard();
    if (its.world != nullptr) look_for_others();
  }

  std::string describe() const override {
    return fmt::format(
        "after each update everybody mixes parameters with the neighbours in a topology {}: spectral gap {:.3g}",
        strategy::topology_name(topology_), mixing_.spectral_gap());
  }

  double after_update(std::int64_t) override {
    replicas_.pack_all();
    if (replicas_.own().world != nullptr) exchange();
    replicas_.on_each([this](std::size_t r) { mix(r); });
    return static_cast<double>(heard_) * static_cast<double>(replicas_.layout().bytes_of_numbers());
  }

  ParameterSet mean() override { return replicas_.mean(); }

 private:
  Rank process_of(int replica) const {
    const OwnParameters& its = replicas_.own();
    for (int p = 0; p < its.world->size(); ++p) {
      const Slice there = chunk(static_cast<std::size_t>(its.replicas), its.world->size(), p);
      if (static_cast<std::size_t>(replica) < there.end()) return Rank{p};
    }
    return Rank{its.world->size() - 1};
  }

  // Who hears this process's replicas, and whom these hear.
  void look_for_others() {
    const OwnParameters& its = replicas_.own();
    const Rank self = its.world->rank();
    std::set<std::pair<int, int>> gives;  // replica, process
    std::set<int> takes;
    for (int reader = 0; reader < its.replicas; ++reader) {
      const Rank process = process_of(reader);
      for (const int heard : mixing_.neighbours(reader)) {
        const Rank owner = process_of(heard);
        if (process == self && owner != self) takes.insert(heard);
        if (process != self && owner == self) gives.insert({heard, process.value});
      }
    }
    for (const auto& [replica, process] : gives) gives_.emplace_back(replica, Rank{process});
    for (const int replica : takes) takes_.push_back({replica, process_of(replica), Flat(replicas_.layout().bytes())});
  }

  void exchange() {
    const OwnParameters& its = replicas_.own();
    Transport& transport = its.world->transport();
    const Deadline deadline = Deadline::after(replicas_.deadline());
    std::vector<SendTicket> tickets;
    try {
      for (const auto& [replica, process] : gives_)
        tickets.push_back(transport.start_send(process, tag_of(replica),
                                               replicas_.flats()[static_cast<std::size_t>(replica - its.first)]));
      for (Other& other : takes_) {
        const Delivery delivery = transport.receive(other.process, tag_of(other.replica), deadline);
        delivery.copy_to(other.flat);
      }
      for (; !tickets.empty(); tickets.pop_back()) transport.finish_send(tickets.back(), deadline);
    } catch (...) {
      for (const SendTicket& ticket : tickets) transport.cancel_send(ticket);
      throw;
    }
  }

  static Tag tag_of(int replica) { return Tag{kFirstTag + static_cast<std::uint64_t>(replica)}; }

  const Flat& flat_of(int replica) {
    const int here = replica - replicas_.own().first;
    if (here >= 0 && here < static_cast<int>(replicas_.flats().size()))
      return replicas_.flats()[static_cast<std::size_t>(here)];
    return std::ranges::find(takes_, replica, &Other::replica)->flat;
  }

  // Reads what was packed, so that nobody waits for anybody.
  void mix(std::size_t r) {
    const FlatParameters& layout = replicas_.layout();
    std::vector<Weighted> parts;
    for (const MixingWeight& its : rows_[r]) parts.push_back({&flat_of(its.replica), its.weight});
    Flat mixed(layout.bytes());
    for (std::size_t i = 0; i < layout.arrays(); ++i) {
      dispatch(layout.type(i), [&]<typename T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<T>)
          add_weighted(layout, i, parts, layout.values<T>(std::span<std::byte>(mixed), i));
      });
    }
    layout.unpack(mixed, replicas_.own().tensors[r]);
  }

  struct Other {
    int replica = 0;
    Rank process = {};
    Flat flat;
  };

  FlatReplicas replicas_;
  strategy::Topology topology_;
  MixingMatrix mixing_;
  std::vector<std::vector<MixingWeight>> rows_;  // of this process's replicas
  std::int64_t heard_ = 0;                       // neighbours of all replicas, wherever they are
  std::vector<std::pair<int, Rank>> gives_;
  std::vector<Other> takes_;
};

// --- AllReduce every so many steps ---

class OuterMixer final : public ReplicaMixer {
 public:
  OuterMixer(OwnParameters own, const strategy::DataParallel& strategy, Duration deadline)
      : replicas_(std::move(own), deadline),
        strategy_(strategy),
        algorithm_(std::get<strategy::AllReduce>(strategy.aggregation).algorithm),
        outer_(rule_of(strategy.outer)),
        common_(replicas_.empty_set()) {
    const OwnParameters& its = replicas_.own();
    for (std::size_t i = 0; i < its.names.size(); ++i) {
      ParameterSet one;
      add_tensor(one, its.names[i], its.tensors.front()[i].detach());
      std::ranges::copy(one[0].bytes(), common_[i].bytes().begin());
    }
  }

  std::string describe() const override {
    return fmt::format(
        "everybody takes {} steps alone, then what they have in common changes by the mean of what became of it",
        strategy_.sync_every);
  }

  bool meets_after(std::int64_t updates) const override { return updates % strategy_.sync_every == 0; }

  double after_update(std::int64_t updates) override {
    if (!meets_after(updates)) return 0;
    const OwnParameters& its = replicas_.own();
    replicas_.pack_all();
    Change change = replicas_.sums_here();
    for (std::size_t i = 0; i < change.size(); ++i) {
      dispatch(common_[i].type(), [&]<typename T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<T>) {
          // What travels is as wide as the parameters are.
          const std::span<const T> before = std::as_const(common_)[i].values<T>();
          std::vector<T> sum(before.size());
          for (std::size_t j = 0; j < sum.size(); ++j)
            sum[j] =
                static_cast<T>(change[i][j] - static_cast<double>(its.tensors.size()) * static_cast<double>(before[j]));
          if (its.world != nullptr)
            all_reduce(*its.world, sum, {.algorithm = algorithm_, .deadline = replicas_.deadline()});
          for (std::size_t j = 0; j < sum.size(); ++j) change[i][j] = static_cast<double>(sum[j]) / its.replicas;
        }
      });
    }
    outer_.step(common_, change);
    give_out();
    return 2 * static_cast<double>(its.replicas - 1) * static_cast<double>(replicas_.layout().bytes_of_numbers());
  }

  ParameterSet mean() override { return replicas_.mean(); }

  void save(ParameterSet& arrays) const override {
    for (const NamedArray& array : common_) {
      ParameterLayout layout = array.layout();
      layout.name = kCommon + layout.name;
      arrays.add(std::move(layout), array.bytes());
    }
    outer_.save(arrays, common_, "outer/");
  }

  // Where there is none they have in common what the checkpoint has.
  void restore(const ParameterSet& arrays) override {
    ParameterSet common = common_;
    const bool was_there = !common.empty() && arrays.find(kCommon + common[0].name()) != nullptr;
    copy_named(arrays, common, was_there ? kCommon : "");
    outer_.restore(arrays, common, "outer/");
    common_ = std::move(common);
  }

 private:
  inline static const std::string kCommon = "outer/common/";

  static strategy::FederatedAggregation rule_of(const strategy::OuterRule& rule) {
    return std::visit([](const auto& its) -> strategy::FederatedAggregation { return its; }, rule);
  }

  void give_out() {
    replicas_.on_each([this](std::size_t r) {
      Flat& flat = replicas_.flats()[r];
      for (std::size_t i = 0; i < common_.size(); ++i)
        std::ranges::copy(std::as_const(common_)[i].bytes(), replicas_.layout().bytes_of(flat, i).begin());
      replicas_.layout().unpack(flat, replicas_.own().tensors[r]);
    });
  }

  FlatReplicas replicas_;
  strategy::DataParallel strategy_;
  AllReduceStrategy algorithm_;
  OuterOptimizer outer_;
  ParameterSet common_;
};

const strategy::DataParallel* parallel_of(const Run& run) {
  return std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
}

}  // namespace

bool has_replica_mixer(const Run& run) {
  const strategy::DataParallel* parallel = parallel_of(run);
  return parallel != nullptr &&
         (parallel->sync_every > 1 || std::holds_alternative<strategy::Decentralized>(parallel->aggregation));
}

bool takes_steps_alone(const Run& run) {
  const strategy::DataParallel* parallel = parallel_of(run);
  return parallel != nullptr && parallel->sync_every > 1;
}

std::optional<Duration> deadline_for_others(const Run& run) {
  if (!takes_steps_alone(run)) return std::nullopt;
  const std::int64_t steps = parallel_of(run)->sync_every * run.train.accumulate;
  const Duration one = run.train.deadline;
  return one > Duration::max() / (steps + 1) ? Duration::max() : (steps + 1) * one;
}

std::unique_ptr<ReplicaMixer> make_replica_mixer(const Run& run, OwnParameters own) {
  const strategy::DataParallel& parallel = *parallel_of(run);
  if (const auto* all_reduce = std::get_if<strategy::AllReduce>(&parallel.aggregation);
      all_reduce != nullptr && is_of_engine(all_reduce->algorithm) && own.world == nullptr)
    throw UsageError(fmt::format("algorithm: {} is for processes, and replicas are threads of one",
                                 to_string(all_reduce->algorithm)));
  if (const auto* decentralized = std::get_if<strategy::Decentralized>(&parallel.aggregation))
    return std::make_unique<NeighbourMixer>(std::move(own), *decentralized, run.seed, run.train.deadline);
  return std::make_unique<OuterMixer>(std::move(own), parallel, run.train.deadline);
}

}  // namespace tutti::detail
