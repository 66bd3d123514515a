#include <tutti/nn/sync_batch_norm.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/instance_norm_native.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward_native.h>
#include <ATen/ops/native_batch_norm_native.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>

#include "batch_norm_loops.hpp"
#include "quiet_registration.hpp"

namespace tutti {
namespace {

using at::Tensor;
using MaybeTensor = c10::optional<Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

thread_local Communicator* world_in_use = nullptr;

// How the values of a tensor of [N, C, ...] lie, and the order that other tensors must have to lie the same.
struct Values {
  Tensor tensor;
  at::MemoryFormat order;
  ChannelLayout layout;
};

Values values_of(const Tensor& input) {
  const at::MemoryFormat order = input.is_contiguous() ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
  ChannelLayout layout{.parts = static_cast<std::size_t>(input.size(0)),
                       .channels = static_cast<std::size_t>(input.size(1))};
  for (std::int64_t d = 2; d < input.dim(); ++d) layout.inner *= static_cast<std::size_t>(input.size(d));
  if (order != at::MemoryFormat::Contiguous) layout.parts *= std::exchange(layout.inner, 1);
  return {input.contiguous(order), order, layout};
}

const Tensor& value_or_undefined(const MaybeTensor& tensor) {
  static const Tensor undefined;
  return tensor.has_value() ? *tensor : undefined;
}

// One number for each channel of a weight or the like, or `otherwise` where there is none.
template <typename T>
std::vector<T> per_channel(const MaybeTensor& parameter, std::size_t channels, T otherwise) {
  const Tensor& tensor = value_or_undefined(parameter);
  if (!tensor.defined()) return std::vector<T>(channels, otherwise);
  const Tensor contiguous = tensor.contiguous();
  const T* first = contiguous.data_ptr<T>();
  return {first, first + channels};
}

void check(const Tensor& input, std::initializer_list<const MaybeTensor*> parameters) {
  const at::ScalarType type = input.scalar_type();
  if (type != at::kFloat && type != at::kDouble) {
    throw UsageError(
        fmt::format("batch normalisation over all ranks takes float32 and float64, found {}", c10::toString(type)));
  }
  if (input.dim() < 2) {
    throw UsageError(
        fmt::format("batch normalisation takes an input of [rows, channels, ...], found {}", c10::str(input.sizes())));
  }
  for (const MaybeTensor* parameter : parameters) {
    const Tensor& tensor = value_or_undefined(*parameter);
    if (!tensor.defined()) continue;
    if (tensor.scalar_type() != type) {
      throw UsageError(
          fmt::format("batch normalisation over all ranks takes parameters of its input's type, {}, found {}",
                      c10::toString(type), c10::toString(tensor.scalar_type())));
    }
    if (tensor.numel() != input.size(1)) {
      throw UsageError(
          fmt::format("expected one number for each of {} channels, found {}", input.size(1), tensor.numel()));
    }
  }
}

// What all ranks bring, rank after rank.
class Gathered {
 public:
  Gathered(Communicator& world, const std::vector<double>& mine)
      : length_(mine.size()), all_(mine.size() * static_cast<std::size_t>(world.size())) {
    all_gather(world, mine, all_);
  }

  template <typename F>
  void for_each_rank(F f) const {
    for (std::size_t first = 0; first < all_.size(); first += length_) f(std::span(all_).subspan(first, length_));
  }

 private:
  std::size_t length_;
  std::vector<double> all_;
};

struct Moments {
  double count = 0;
  std::vector<double> mean;
  std::vector<double> squares;  // the sum of squared distances from the mean
};

// This rank's; one message for all channels: count, means, squares.
template <typename T>
std::vector<double> own_moments(const T* x, const ChannelLayout& layout) {
  const auto count = static_cast<double>(layout.values_per_channel());
  std::vector<double> mean = sums_of_channels(layout, [x](std::size_t i, std::size_t) { return double{x[i]}; });
  if (count > 0) {
    for (double& value : mean) value /= count;
  }
  const std::vector<double> squares = sums_of_channels(layout, [x, m = mean.data()](std::size_t i, std::size_t c) {
    const double distance = double{x[i]} - m[c];
    return distance * distance;
  });
  std::vector<double> message{count};
  message.insert(message.end(), mean.begin(), mean.end());
  message.insert(message.end(), squares.begin(), squares.end());
  return message;
}

// Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979; rank by
// rank, so that all ranks get the same bits.
Moments combined(const Gathered& gathered, std::size_t channels) {
  Moments total{.mean = std::vector<double>(channels), .squares = std::vector<double>(channels)};
  gathered.for_each_rank([&](std::span<const double> message) {
    const double count = message[0];
    if (count == 0) return;
    const double together = total.count + count;
    for (std::size_t c = 0; c < channels; ++c) {
      const double distance = message[1 + c] - total.mean[c];
      total.mean[c] += distance * (count / together);
      total.squares[c] += message[1 + channels + c] + distance * distance * (total.count * (count / together));
    }
    total.count = together;
  });
  return total;
}

template <typename T>
void move_towards(const MaybeTensor& running, const std::vector<double>& found, double momentum) {
  const Tensor& tensor = value_or_undefined(running);
  if (!tensor.defined()) return;
  auto values = tensor.accessor<T, 1>();
  for (std::size_t c = 0; c < found.size(); ++c) {
    T& value = values[static_cast<std::int64_t>(c)];
    value = static_cast<T>(momentum * found[c] + (1 - momentum) * double{value});
  }
}

// The means that autograd keeps for the backward pass say which world they are of. It is their memory that is marked:
// autograd hands on other tensors of the same memory.
struct MarkedMeans {
  const Communicator* world;
  std::vector<double> memory;  // of enough room for either type, and aligned for both

  static void release(void* self) { delete static_cast<MarkedMeans*>(self); }
};

Tensor empty_means(const Communicator& world, const Tensor& input) {
  const auto channels = static_cast<std::size_t>(input.size(1));
  auto marked = std::make_unique<MarkedMeans>(MarkedMeans{&world, std::vector<double>(channels)});
  double* const memory = marked->memory.data();
  at::DataPtr data(memory, marked.release(), &MarkedMeans::release, at::Device(at::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), channels * input.element_size(), std::move(data));
  Tensor means = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                          c10::DispatchKeySet(c10::DispatchKey::CPU), input.dtype());
  means.unsafeGetTensorImpl()->set_sizes_contiguous(input.size(1));
  return means;
}

// The world that computed what is to go back now; none where it was no scope.
const Communicator* world_of(const MaybeTensor& means) {
  const Tensor& tensor = value_or_undefined(means);
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &MarkedMeans::release) return nullptr;
  return static_cast<const MarkedMeans*>(data.get_context())->world;
}

struct Parameters {
  const MaybeTensor& weight;
  const MaybeTensor& bias;
  const MaybeTensor& running_mean;
  const MaybeTensor& running_var;
  double momentum;
  double eps;
};

template <typename T>
ThreeTensors forward(Communicator& world, const Tensor& input, const Parameters& parameters) {
  const Values x = values_of(input);
  const std::size_t channels = x.layout.channels;
  const T* const in = x.tensor.data_ptr<T>();
  const Moments total = combined(Gathered(world, own_moments(in, x.layout)), channels);
  if (total.count == 1) {
    throw UsageError(fmt::format(
        "batch normalisation in training mode needs more than one value for each channel, found one over {} ranks; "
        "this rank's input is {}",
        world.size(), c10::str(input.sizes())));
  }

  Tensor output = at::empty_like(x.tensor, x.order);
  Tensor saved_mean = empty_means(world, input);
  Tensor saved_invstd = at::empty({input.size(1)}, input.options().memory_format(at::MemoryFormat::Contiguous));
  const std::vector<T> weight = per_channel<T>(parameters.weight, channels, T{1});
  const std::vector<T> bias = per_channel<T>(parameters.bias, channels, T{0});
  T* const mean = saved_mean.data_ptr<T>();
  T* const invstd = saved_invstd.data_ptr<T>();
  std::vector<T> scale(channels);
  std::vector<double> unbiased_variance(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double inverse = total.count == 0 ? 0 : 1 / std::sqrt(total.squares[c] / total.count + parameters.eps);
    mean[c] = static_cast<T>(total.mean[c]);
    invstd[c] = static_cast<T>(inverse);
    scale[c] = static_cast<T>(inverse * double{weight[c]});
    unbiased_variance[c] = total.squares[c] / (total.count - 1);
  }
  write_channels(x.layout, output.data_ptr<T>(),
                 [in, mean, s = scale.data(), b = bias.data()](std::size_t i, std::size_t c) {
                   return (in[i] - mean[c]) * s[c] + b[c];
                 });
  if (total.count > 0) {
    move_towards<T>(parameters.running_mean, total.mean, parameters.momentum);
    move_towards<T>(parameters.running_var, unbiased_variance, parameters.momentum);
  }
  return {output, saved_mean, saved_invstd};
}

// With n values y_i = (x_i - m) s w + b of a channel, m and s functions of all x:
//   dx_i = s w (dy_i - sum(dy)/n - (x_i - m) s^2 sum(dy (x - m))/n)
template <typename T>
ThreeTensors backward(Communicator& world, const Tensor& grad_output, const Tensor& input, const MaybeTensor& weights,
                      const Tensor& saved_mean, const Tensor& saved_invstd, const std::array<bool, 3>& wanted) {
  const Values x = values_of(input);
  const Tensor grad = grad_output.contiguous(x.order);
  const std::size_t channels = x.layout.channels;
  const T* const in = x.tensor.data_ptr<T>();
  const T* const dy = grad.data_ptr<T>();
  const std::vector<T> mean = per_channel<T>(saved_mean, channels, T{0});
  const std::vector<T> invstd = per_channel<T>(saved_invstd, channels, T{0});
  const std::vector<T> weight = per_channel<T>(weights, channels, T{1});
  const T* const m = mean.data();

  const std::vector<double> sum =
      sums_of_channels(x.layout, [dy](std::size_t i, std::size_t) { return double{dy[i]}; });
  const std::vector<double> product = sums_of_channels(
      x.layout, [dy, in, m](std::size_t i, std::size_t c) { return double{dy[i]} * (double{in[i]} - double{m[c]}); });

  // Also where this rank wants no gradient of its input: others may.
  std::vector<double> message{static_cast<double>(x.layout.values_per_channel())};
  message.insert(message.end(), sum.begin(), sum.end());
  message.insert(message.end(), product.begin(), product.end());
  std::vector<double> total(message.size());
  Gathered(world, message).for_each_rank([&](std::span<const double> theirs) {
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += theirs[i];
  });

  ThreeTensors gradients;
  if (wanted[0]) {
    const double count = total[0];
    std::vector<T> offset(channels);
    std::vector<T> slope(channels);
    std::vector<T> scale(channels);
    for (std::size_t c = 0; c < channels && count > 0; ++c) {
      const double s{invstd[c]};
      offset[c] = static_cast<T>(total[1 + c] / count);
      slope[c] = static_cast<T>(s * s * total[1 + channels + c] / count);
      scale[c] = static_cast<T>(s * double{weight[c]});
    }
    Tensor dx = at::empty_like(x.tensor, x.order);
    write_channels(x.layout, dx.data_ptr<T>(),
                   [dy, in, m, o = offset.data(), k = slope.data(), s = scale.data()](std::size_t i, std::size_t c) {
                     return (dy[i] - o[c] - (in[i] - m[c]) * k[c]) * s[c];
                   });
    std::get<0>(gradients) = dx;
  }
  const at::TensorOptions options = input.options().memory_format(at::MemoryFormat::Contiguous);
  if (wanted[1]) {
    Tensor dweight = at::empty({input.size(1)}, options);
    T* const values = dweight.data_ptr<T>();
    for (std::size_t c = 0; c < channels; ++c) values[c] = static_cast<T>(product[c] * double{invstd[c]});
    std::get<1>(gradients) = dweight;
  }
  if (wanted[2]) {
    Tensor dbias = at::empty({input.size(1)}, options);
    T* const values = dbias.data_ptr<T>();
    for (std::size_t c = 0; c < channels; ++c) values[c] = static_cast<T>(sum[c]);
    std::get<2>(gradients) = dbias;
  }
  return gradients;
}

// The kernels, with the names of the operators they are for.

ThreeTensors native_batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                               const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training,
                               double momentum, double eps) {
  if (world_in_use == nullptr || !training) {
    return at::native::batch_norm_cpu(input, weight, bias, running_mean, running_var, training, momentum, eps);
  }
  check(input, {&weight, &bias, &running_mean, &running_var});
  const Parameters parameters{weight, bias, running_mean, running_var, momentum, eps};
  return input.scalar_type() == at::kFloat ? forward<float>(*world_in_use, input, parameters)
                                           : forward<double>(*world_in_use, input, parameters);
}

ThreeTensors native_batch_norm_backward(const Tensor& grad_output, const Tensor& input, const MaybeTensor& weight,
                                        const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                        const MaybeTensor& saved_mean, const MaybeTensor& saved_invstd, bool training,
                                        double eps, std::array<bool, 3> wanted) {
  const Communicator* const world = training ? world_of(saved_mean) : nullptr;
  if (world == nullptr) {
    return at::native::batch_norm_backward_cpu(grad_output, input, weight, running_mean, running_var, saved_mean,
                                               saved_invstd, training, eps, wanted);
  }
  if (world != world_in_use) {
    throw UsageError(
        "the backward pass of a batch norm that was computed in the scope of a SyncBatchNorm belongs into the scope, "
        "of "
        "the same world");
  }
  const Tensor& weights = value_or_undefined(weight);
  if (at::GradMode::is_enabled() &&
      (grad_output.requires_grad() || input.requires_grad() || (weights.defined() && weights.requires_grad()))) {
    throw UsageError("batch normalisation over all ranks has no second derivative: do without create_graph");
  }
  if (grad_output.scalar_type() != input.scalar_type()) {
    throw UsageError(fmt::format("expected a gradient of its input's type, {}, found {}",
                                 c10::toString(input.scalar_type()), c10::toString(grad_output.scalar_type())));
  }
  const Tensor& mean = *saved_mean;
  const Tensor& invstd = value_or_undefined(saved_invstd);
  return input.scalar_type() == at::kFloat
             ? backward<float>(*world_in_use, grad_output, input, weight, mean, invstd, wanted)
             : backward<double>(*world_in_use, grad_output, input, weight, mean, invstd, wanted);
}

// libtorch has a short cut for an input of no rows; here the other ranks wait for this one's count.
Tensor batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                  const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
                  double eps, bool cudnn_enabled) {
  if (world_in_use != nullptr && training && input.numel() == 0 && input.dim() >= 2) {
    return std::get<0>(at::native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps));
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

// libtorch's is a batch norm of one row, whose channels are those of all rows.
Tensor instance_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const MaybeTensor& running_mean, const MaybeTensor& running_var, bool use_input_stats,
                     double momentum, double eps, bool cudnn_enabled) {
  struct NoWorld {
    Communicator* outer = std::exchange(world_in_use, nullptr);
    ~NoWorld() { world_in_use = outer; }
  };
  const NoWorld scope;
  return at::native::instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
                                   cudnn_enabled);
}

void replace_composed(torch::Library& aten) {
  aten.impl("batch_norm", TORCH_FN(batch_norm));
  aten.impl("instance_norm", TORCH_FN(instance_norm));
}

void replace_batch_norm(torch::Library& aten) {
  aten.impl("native_batch_norm", TORCH_FN(native_batch_norm));
  aten.impl("native_batch_norm_backward", TORCH_FN(native_batch_norm_backward));
  replace_composed(aten);  // of tensors that have no part in autograd (inference mode)
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(Communicator& world) {
  static const torch::Library kernels = replace_kernels(c10::DispatchKey::CPU, replace_batch_norm);
  // These are made of operators that autograd knows, so they stand above it.
  static const torch::Library composed = replace_kernels(c10::DispatchKey::AutogradCPU, replace_composed);
  outer_ = std::exchange(world_in_use, &world);
}

SyncBatchNorm::~SyncBatchNorm() { world_in_use = outer_; }

bool SyncBatchNorm::is_active() { return world_in_use != nullptr; }

}  // namespace tutti
