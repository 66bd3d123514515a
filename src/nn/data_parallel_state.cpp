// What is saved of a DataParallel, by name:
//
//   hidden.weight                       parameters and buffers
//   optimizer/exp_avg/hidden.weight     what the optimizer keeps of a parameter
//   shard/3/norm.running_mean           buffers that each shard has to itself
//   replica/2/body.weight               private parameters of all replicas but the first, whose are the module's; and
//   replica/2/optimizer/...             what is kept of them
//   accumulated/hidden.weight           sums of steps that go into an update yet to come, of private parameters
//   replica/2/accumulated/...           each replica's
//   compression/1/hidden.weight         what a compression kept back, by who sends; and factors, which all share
//   train/steps, accumulated/steps, accumulated/weight
#include <cstring>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <tutti/collective/parameter_sets.hpp>
#include <tutti/nn/parameter_update.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "data_parallel_inside.hpp"
#include "optimizer_state.hpp"
#include "saved_numbers.hpp"

namespace tutti::detail {
namespace {

template <typename Values>
ConstArray array_of(const Values& values) {
  return std::visit([](const auto& its) { return ConstArray(its); }, values);
}

CompressorState::Values values_of(const NamedArray& array) {
  if (array.type() == DataType::float64) {
    const std::span<const double> values = array.values<double>();
    return std::vector<double>(values.begin(), values.end());
  }
  const std::span<const float> values = array.values<float>();
  return std::vector<float>(values.begin(), values.end());
}

Shape length_of(const ConstArray& array) { return {static_cast<std::int64_t>(array.length())}; }

// Where others send than did: what remained is shared out evenly, so that its mean is what it was.
CompressorState::Values mean_of(const std::vector<const NamedArray*>& arrays) {
  CompressorState::Values mean = values_of(*arrays.front());
  std::visit(
      [&]<typename T>(std::vector<T>& values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          double sum = 0;
          for (const NamedArray* array : arrays) sum += static_cast<double>(array->values<T>()[i]);
          values[i] = static_cast<T>(sum / static_cast<double>(arrays.size()));
        }
      },
      mean);
  return mean;
}

std::vector<GradientCompressor*> compressors_of(DataParallelEngine::Inside& inside) {
  if (inside.named) return inside.named->compressors();
  if (inside.processes && inside.processes->compressor()) return {&*inside.processes->compressor()};
  return {};
}

// --- what is each replica's own, as one set for each of this process's replicas ---

ParameterSet private_state(DataParallelEngine::Inside& inside, int worker) {
  ParameterSet state;
  PrivateParameters& own = *inside.own;
  bool is_accumulated = false;
  for (std::size_t k = 0; k < own.parameters().size(); ++k) {
    const std::string& name = inside.name_of(own.parameters()[k]);
    add_tensor(state, name, own.variable(worker, k));
    add_optimizer(state, "", name, own.optimizer(worker), own.variable(worker, k));
    if (!own.accumulated(worker, k).defined()) continue;
    is_accumulated = true;
    add_tensor(state, "accumulated/" + name, own.accumulated(worker, k));
  }
  if (is_accumulated) {
    const double weight = own.accumulated_weight(worker);
    state.add("accumulated/weight", {}, ConstArray(&weight, 1, DataType::float64));
  }
  return state;
}

void save_private(DataParallelEngine::Inside& inside, ParameterSet& state) {
  if (!inside.own) return;
  const auto add_all = [&](const ParameterSet& its, int replica) {
    for (const NamedArray& array : its) {
      if (replica == 0 && !array.name().starts_with("accumulated/")) continue;  // the module's own
      ParameterLayout layout = array.layout();
      layout.name = fmt::format("replica/{}/{}", replica, array.name());
      state.add(std::move(layout), array.bytes());
    }
  };
  if (inside.options.world == nullptr) {
    for (int w = 0; w < inside.workers; ++w) add_all(private_state(inside, w), w);
    return;
  }
  // Processes with fewer replicas send their last one again.
  Communicator& world = *inside.options.world;
  const auto replicas = static_cast<std::size_t>(inside.options.replicas);
  const auto most = static_cast<int>(chunk(replicas, world.size(), 0).count);
  std::vector<ParameterSet> by_replica(world.rank() == Rank{0} ? replicas : 0);
  for (int w = 0; w < most; ++w) {
    std::vector<ParameterSet> all = gather(world, private_state(inside, std::min(w, inside.workers - 1)));
    for (std::size_t p = 0; p < all.size(); ++p) {
      const Slice its = chunk(replicas, world.size(), static_cast<int>(p));
      if (static_cast<std::size_t>(w) < its.count)
        by_replica[its.first + static_cast<std::size_t>(w)] = std::move(all[p]);
    }
  }
  for (std::size_t replica = 0; replica < by_replica.size(); ++replica)
    add_all(by_replica[replica], static_cast<int>(replica));
}

void save_compression(DataParallelEngine::Inside& inside, ParameterSet& state) {
  const std::vector<GradientCompressor*> compressors = compressors_of(inside);
  if (compressors.empty()) return;
  for (const auto& [name, values] : compressors.front()->state().factors)
    state.add("compression/factor/" + name, length_of(array_of(values)), array_of(values));
  const auto remains_of = [](const GradientCompressor& compressor) {
    ParameterSet remains;
    for (const auto& [name, values] : compressor.state().remains)
      remains.add(name, length_of(array_of(values)), array_of(values));
    return remains;
  };
  std::vector<ParameterSet> all;
  if (inside.processes) {
    all = gather(*inside.options.world, remains_of(*compressors.front()));
  } else {
    for (const GradientCompressor* compressor : compressors) all.push_back(remains_of(*compressor));
  }
  for (std::size_t sender = 0; sender < all.size(); ++sender) {
    for (const NamedArray& array : all[sender])
      state.add(fmt::format("compression/{}/{}", sender, array.name()), array.shape(), array.array());
  }
}

// For each of this process's compressors.
std::vector<CompressorState> compression_in(DataParallelEngine::Inside& inside, const ParameterSet& state) {
  const std::size_t here = compressors_of(inside).size();
  const std::size_t senders = inside.processes ? static_cast<std::size_t>(inside.process_count()) : here;
  const std::size_t first = inside.processes ? static_cast<std::size_t>(inside.process()) : 0;
  std::vector<CompressorState> states(here);
  if (here == 0) return states;
  for (std::size_t i = 0; i < inside.replicas->parameters().size(); ++i) {
    const std::string& name = inside.name_of(i);
    if (const NamedArray* factor = state.find("compression/factor/" + name)) {
      for (CompressorState& one : states) one.factors[name] = values_of(*factor);
    }
    std::vector<const NamedArray*> remains;
    while (const NamedArray* one = state.find(fmt::format("compression/{}/{}", remains.size(), name)))
      remains.push_back(one);
    if (remains.empty()) continue;
    for (std::size_t c = 0; c < here; ++c) {
      states[c].remains[name] = remains.size() == senders ? values_of(*remains[first + c]) : mean_of(remains);
    }
  }
  return states;
}

}  // namespace

void DataParallelEngine::Inside::save(ParameterSet& state) {
  ParameterSet mine;
  add_module(mine, replicas->module());
  save_progress(mine, {.steps = static_cast<std::int64_t>(step_number),
                       .kept_steps = accumulated_steps,
                       .kept_weight = accumulated_weight});
  for (std::size_t i = 0; i < replicas->parameters().size(); ++i)
    add_optimizer(mine, "", name_of(i), *optimizer, replicas->tensors()[i]);
  for (std::size_t b = 0; b < buffers->names().size(); ++b) {
    if (!buffers->is_by_shard(b)) continue;
    for (std::size_t s = 0; s < buffers->shards(); ++s)
      add_tensor(mine, fmt::format("shard/{}/{}", s, buffers->names()[b]), buffers->kept(s, b));
  }
  for (std::size_t i = 0; i < accumulated.size() && accumulated_steps > 0; ++i) {
    if (accumulated[i].defined()) add_tensor(mine, "accumulated/" + name_of(i), accumulated[i]);
  }
  save_private(*this, mine);
  save_compression(*this, mine);
  if (process() != 0) return;
  for (const NamedArray& array : mine) state.add(array.layout(), array.bytes());
}

void DataParallelEngine::Inside::restore(const ParameterSet& state) {
  // All of it is looked at before anything is changed.
  std::vector<std::function<void()>> changes;
  const torch::nn::Module& module = replicas->module();
  const auto take = [&](const std::string& name, const torch::Tensor& tensor) {
    const NamedArray& array = state.at(name);
    refuse_unless_fits(array, tensor);
    changes.emplace_back([&array, tensor] { copy_to_tensor(array, tensor); });
  };
  const auto take_optimizer = [&](const std::string& prefix, const std::string& name,
                                  torch::optim::Optimizer& its_optimizer, const torch::Tensor& parameter) {
    changes.emplace_back(
        [&its_optimizer, parameter, fields = optimizer_in(state, prefix, name, its_optimizer, parameter)] {
          set_optimizer_fields(its_optimizer, parameter, fields);
        });
  };
  for (const auto& item : module.named_buffers()) take(item.key(), item.value());
  for (std::size_t i = 0; i < replicas->parameters().size(); ++i) {
    take(name_of(i), replicas->tensors()[i]);
    take_optimizer("", name_of(i), *optimizer, replicas->tensors()[i]);
  }
  changes.emplace_back([&] { buffers.emplace(replicas->module(), shards, buffers_mode, options.is_private); });
  for (std::size_t b = 0; b < buffers->names().size(); ++b) {
    if (!buffers->is_by_shard(b)) continue;
    for (std::size_t s = 0; s < buffers->shards(); ++s) {
      const NamedArray* array = state.find(fmt::format("shard/{}/{}", s, buffers->names()[b]));
      if (array == nullptr) continue;  // another number of shards: the module's
      refuse_unless_fits(*array, buffers->kept(s, b));
      changes.emplace_back([this, array, s, b] { copy_to_tensor(*array, buffers->kept(s, b)); });
    }
  }
  const UpdateProgress progress = progress_in(state);
  const std::int64_t steps_before = progress.kept_steps;
  std::vector<torch::Tensor> sums_before;
  if (steps_before > 0 && steps_before < options.accumulate) {
    for (std::size_t i = 0; i < replicas->parameters().size(); ++i) {
      const NamedArray* array = state.find("accumulated/" + name_of(i));
      sums_before.emplace_back();
      if (array == nullptr || replicas->is_private(i)) continue;
      sums_before.back() =
          torch::empty_like(replicas->tensors()[i], replicas->tensors()[i].options().requires_grad(false));
      copy_to_tensor(*array, sums_before.back());
    }
  }
  if (own) {
    for (int w = 0; w < workers; ++w) {
      // A replica that was not there takes after the first.
      const auto prefix_of = [](int replica) { return fmt::format("replica/{}/", replica); };
      for (std::size_t k = 0; k < own->parameters().size(); ++k) {
        const std::string& name = name_of(own->parameters()[k]);
        std::string prefix = prefix_of(first_replica + w);
        if (state.find(prefix + name) == nullptr) prefix.clear();
        const torch::Tensor& variable = own->variable(w, k);
        take(prefix + name, variable);
        take_optimizer(prefix, name, own->optimizer(w), variable);
        torch::Tensor sum;
        const std::string accumulated_prefix = prefix_of(first_replica + w) + "accumulated";
        if (const NamedArray* array = state.find(accumulated_prefix + "/" + name);
            array != nullptr && !sums_before.empty()) {
          sum = torch::empty_like(variable, variable.options().requires_grad(false));
          copy_to_tensor(*array, sum);
        }
        changes.emplace_back([this, w, k, sum] { own->accumulated(w, k) = sum; });
      }
      const std::string name = prefix_of(first_replica + w) + "accumulated/weight";
      const double weight = sums_before.empty() ? 0 : saved_number(state, name, 0.0);
      changes.emplace_back([this, w, weight] { own->accumulated_weight(w) = weight; });
    }
  }
  std::vector<CompressorState> compression = compression_in(*this, state);
  const std::vector<GradientCompressor*> compressors = compressors_of(*this);
  for (std::size_t c = 0; c < compressors.size(); ++c) compressors[c]->restore(std::move(compression[c]));
  for (const std::function<void()>& change : changes) change();
  buffers->begin(module);
  step_number = static_cast<std::uint64_t>(progress.steps);
  accumulated = std::move(sums_before);
  accumulated_steps = accumulated.empty() ? 0 : static_cast<int>(steps_before);
  accumulated_weight = accumulated.empty() ? 0 : progress.kept_weight;
}

}  // namespace tutti::detail
