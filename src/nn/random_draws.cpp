#include <tutti/nn/random_draws.hpp>

#include <deque>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_sample_dirichlet_native.h>
#include <ATen/ops/_standard_gamma_native.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/binomial_native.h>
#include <ATen/ops/cauchy_native.h>
#include <ATen/ops/exponential_native.h>
#include <ATen/ops/geometric_native.h>
#include <ATen/ops/log_normal_native.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/poisson_native.h>
#include <ATen/ops/random_native.h>
#include <ATen/ops/randperm_native.h>
#include <ATen/ops/rrelu_with_noise_native.h>
#include <ATen/ops/uniform_native.h>
#include <torch/library.h>
#include <tutti/base/random.hpp>

#include "quiet_registration.hpp"

namespace tutti {
namespace {

using at::Scalar;
using at::Tensor;
using MaybeGenerator = c10::optional<at::Generator>;

thread_local RandomDraws* innermost = nullptr;

// One for each scope around another, made once a thread and used again.
thread_local std::deque<at::Generator> generators;

// libtorch's way to seed takes 32 bits of the seed, and after 2^16 keys two would likely be the same. So the whole
// state comes from the key.
void set_to_start(at::CPUGeneratorImpl& generator, const RandomDrawsKey& key) {
  RandomStream stream({key.seed, key.step, key.shard, key.place});
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data{};
  data.seed_ = stream();
  data.left_ = 1;  // all of the state is yet to be stirred, as after seeding
  data.seeded_ = true;
  for (std::size_t i = 0; i < data.state_.size(); i += 2) {
    const std::uint64_t bits = stream();
    data.state_[i] = static_cast<std::uint32_t>(bits);
    data.state_[i + 1] = static_cast<std::uint32_t>(bits >> 32);
  }
  static_assert(at::MERSENNE_STATE_N % 2 == 0);
  engine.set_data(data);
  generator.set_engine(engine);
  generator.set_next_float_normal_sample(c10::nullopt);
  generator.set_next_double_normal_sample(c10::nullopt);
}

template <typename T>
T& with_own_generator(T& argument) {
  return argument;
}

MaybeGenerator with_own_generator(MaybeGenerator& given) {
  if (innermost == nullptr || (given.has_value() && given->defined())) return std::move(given);
  return innermost->generator();
}

// libtorch's kernel, with the thread's generator where none is given.
template <typename Signature, Signature* kernel>
struct Drawing;

template <typename Result, typename... Arguments, Result (*kernel)(Arguments...)>
struct Drawing<Result(Arguments...), kernel> {
  static Result call(Arguments... arguments) { return kernel(with_own_generator(arguments)...); }
};

template <typename Signature, Signature* kernel>
void replace(torch::Library& aten, const char* name) {
  aten.impl(name, TORCH_FN((Drawing<Signature, kernel>::call)));
}

// All operators of libtorch 1.13 that take a generator and have kernels for the CPU. Everything else that draws there,
// such as dropout and rand, is made of these.
void replace_draws(torch::Library& aten) {
  using Gen = MaybeGenerator;
  namespace native = at::native;
  replace<Tensor&(Tensor&, double, Gen), &native::bernoulli_>(aten, "bernoulli_.float");
  replace<Tensor&(Tensor&, const Tensor&, Gen), &native::bernoulli_>(aten, "bernoulli_.Tensor");
  replace<Tensor&(const Tensor&, Gen, Tensor&), &native::bernoulli_out>(aten, "bernoulli.out");
  replace<Tensor&(Tensor&, double, double, Gen), &native::uniform_>(aten, "uniform_");
  replace<Tensor&(Tensor&, double, double, Gen), &native::normal_>(aten, "normal_");
  replace<Tensor(const Tensor&, double, Gen), &native::normal>(aten, "normal.Tensor_float");
  replace<Tensor(double, const Tensor&, Gen), &native::normal>(aten, "normal.float_Tensor");
  replace<Tensor(const Tensor&, const Tensor&, Gen), &native::normal>(aten, "normal.Tensor_Tensor");
  replace<Tensor&(const Tensor&, double, Gen, Tensor&), &native::normal_out>(aten, "normal.Tensor_float_out");
  replace<Tensor&(double, const Tensor&, Gen, Tensor&), &native::normal_out>(aten, "normal.float_Tensor_out");
  replace<Tensor&(const Tensor&, const Tensor&, Gen, Tensor&), &native::normal_out>(aten, "normal.Tensor_Tensor_out");
  replace<Tensor&(Tensor&, double, double, Gen), &native::log_normal_>(aten, "log_normal_");
  replace<Tensor&(Tensor&, double, double, Gen), &native::cauchy_>(aten, "cauchy_");
  replace<Tensor&(Tensor&, double, Gen), &native::exponential_>(aten, "exponential_");
  replace<Tensor&(Tensor&, double, Gen), &native::geometric_>(aten, "geometric_");
  replace<Tensor&(Tensor&, Gen), &native::random_>(aten, "random_");
  replace<Tensor&(Tensor&, std::int64_t, Gen), &native::random_>(aten, "random_.to");
  replace<Tensor&(Tensor&, std::int64_t, c10::optional<std::int64_t>, Gen), &native::random_>(aten, "random_.from");
  replace<Tensor&(std::int64_t, Gen, Tensor&), &native::randperm_out_cpu>(aten, "randperm.generator_out");
  replace<Tensor(const Tensor&, std::int64_t, bool, Gen), &native::multinomial>(aten, "multinomial");
  replace<Tensor&(const Tensor&, std::int64_t, bool, Gen, Tensor&), &native::multinomial_out>(aten, "multinomial.out");
  replace<Tensor(const Tensor&, Gen), &native::_s_poisson_cpu>(aten, "poisson");
  replace<Tensor(const Tensor&, const Tensor&, Gen), &native::_s_binomial_cpu>(aten, "binomial");
  replace<Tensor(const Tensor&, Gen), &native::_s_gamma_cpu>(aten, "_standard_gamma");
  replace<Tensor(const Tensor&, Gen), &native::_s_dirichlet_cpu>(aten, "_sample_dirichlet");
  replace<Tensor(const Tensor&, const Tensor&, const Scalar&, const Scalar&, bool, Gen), &native::rrelu_with_noise_cpu>(
      aten, "rrelu_with_noise");
  replace<Tensor&(const Tensor&, const Tensor&, const Scalar&, const Scalar&, bool, Gen, Tensor&),
          &native::rrelu_with_noise_out_cpu>(aten, "rrelu_with_noise.out");
  replace<Tensor&(Tensor&, const Tensor&, const Scalar&, const Scalar&, bool, Gen), &native::rrelu_with_noise_cpu_>(
      aten, "rrelu_with_noise_");
}

}  // namespace

RandomDraws::RandomDraws(const RandomDrawsKey& key)
    : key_(key), outer_(innermost), depth_(outer_ == nullptr ? 0 : outer_->depth_ + 1) {
  static const torch::Library kernels = replace_kernels(c10::DispatchKey::CPU, replace_draws);
  innermost = this;
}

RandomDraws::~RandomDraws() { innermost = outer_; }

const RandomDraws* RandomDraws::current() { return innermost; }

const at::Generator& RandomDraws::generator() {
  while (generators.size() <= depth_) generators.push_back(at::detail::createCPUGenerator());
  const at::Generator& generator = generators[depth_];
  if (!started_) set_to_start(*generator.get<at::CPUGeneratorImpl>(), key_);
  started_ = true;
  return generator;
}

}  // namespace tutti
