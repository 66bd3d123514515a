// Included by one file for each set of instructions, which names the table in TUTTI_UPDATE_TABLE. The compiler makes
// vectors of these loops; additions, products, divisions and roots round the same way in all of them. Nothing here may
// call an inline function of the library's: of several compiled copies the linker keeps any.
#include <cstddef>
#include <type_traits>

#include "optimizer_table.hpp"

namespace tutti::detail {
namespace {

template <typename T>
T* array(void* memory) {
  return static_cast<T*>(memory);
}

float root(float value) { return __builtin_sqrtf(value); }
double root(double value) { return __builtin_sqrt(value); }

// The switches become types, so that no loop looks at them.
template <typename F>
void with_type_of(bool value, F f) {
  value ? f(std::true_type{}) : f(std::false_type{});
}

template <typename T>
void sgd(const UpdateLoop& loop) {
  T* __restrict p = array<T>(loop.parameters);
  const T* __restrict g = static_cast<const T*>(loop.gradients);
  T* __restrict buffer = loop.has_momentum ? array<T>(loop.state[0]) : nullptr;
  const T scale = static_cast<T>(loop.gradient_scale);
  const T rate = static_cast<T>(-loop.lr);
  const T decay = static_cast<T>(loop.weight_decay);
  const T momentum = static_cast<T>(loop.decay1);
  // A buffer begins as the first gradient, whole.
  const T kept = loop.is_first ? T{0} : momentum;
  const T share = loop.is_first ? T{1} : static_cast<T>(loop.share1);
  with_type_of(decay != T{0}, [&](auto decays) {
    with_type_of(loop.has_momentum, [&](auto has_momentum) {
      with_type_of(loop.is_nesterov, [&](auto is_nesterov) {
        for (std::size_t i = 0; i < loop.length; ++i) {
          T change = scale * g[i];
          if constexpr (decays) change += decay * p[i];
          if constexpr (has_momentum) {
            buffer[i] = kept * buffer[i] + share * change;
            change = is_nesterov ? change + momentum * buffer[i] : buffer[i];
          }
          p[i] += rate * change;
        }
      });
    });
  });
}

template <typename T>
void adam(const UpdateLoop& loop) {
  T* __restrict p = array<T>(loop.parameters);
  const T* __restrict g = static_cast<const T*>(loop.gradients);
  T* __restrict mean = array<T>(loop.state[0]);
  T* __restrict square = array<T>(loop.state[1]);
  T* __restrict most = loop.has_amsgrad ? array<T>(loop.state[2]) : nullptr;
  const T scale = static_cast<T>(loop.gradient_scale);
  const T rate = static_cast<T>(-loop.lr);
  const T decay = static_cast<T>(loop.weight_decay);
  const T kept1 = static_cast<T>(loop.decay1);
  const T kept2 = static_cast<T>(loop.decay2);
  const T share1 = static_cast<T>(loop.share1);
  const T share2 = static_cast<T>(loop.share2);
  const T correction = static_cast<T>(loop.correction2);
  const T eps = static_cast<T>(loop.eps);
  with_type_of(loop.is_decoupled, [&](auto is_decoupled) {
    with_type_of(loop.has_amsgrad, [&](auto has_amsgrad) {
      for (std::size_t i = 0; i < loop.length; ++i) {
        T gradient = scale * g[i];
        T parameter = p[i];
        if constexpr (is_decoupled) {
          parameter *= decay;  // what stays of it
        } else {
          gradient += decay * parameter;
        }
        mean[i] = kept1 * mean[i] + share1 * gradient;
        square[i] = kept2 * square[i] + share2 * gradient * gradient;
        T second = square[i];
        if constexpr (has_amsgrad) {
          second = most[i] > second ? most[i] : second;
          most[i] = second;
        }
        p[i] = parameter + rate * (mean[i] / (root(second) / correction + eps));
      }
    });
  });
}

template <typename T>
void rmsprop(const UpdateLoop& loop) {
  T* __restrict p = array<T>(loop.parameters);
  const T* __restrict g = static_cast<const T*>(loop.gradients);
  T* __restrict square = array<T>(loop.state[0]);
  T* __restrict buffer = loop.has_momentum ? array<T>(loop.state[1]) : nullptr;
  T* __restrict mean = loop.is_centered ? array<T>(loop.state[loop.has_momentum ? 2 : 1]) : nullptr;
  const T scale = static_cast<T>(loop.gradient_scale);
  const T rate = static_cast<T>(-loop.lr);
  const T decay = static_cast<T>(loop.weight_decay);
  const T momentum = static_cast<T>(loop.decay2);
  const T kept = static_cast<T>(loop.decay1);
  const T share = static_cast<T>(loop.share1);
  const T eps = static_cast<T>(loop.eps);
  with_type_of(loop.has_momentum, [&](auto has_momentum) {
    with_type_of(loop.is_centered, [&](auto is_centered) {
      for (std::size_t i = 0; i < loop.length; ++i) {
        const T gradient = scale * g[i] + decay * p[i];
        square[i] = kept * square[i] + share * gradient * gradient;
        T second = square[i];
        if constexpr (is_centered) {
          mean[i] = kept * mean[i] + share * gradient;
          second -= mean[i] * mean[i];
        }
        T change = gradient / (root(second) + eps);
        if constexpr (has_momentum) change = buffer[i] = momentum * buffer[i] + change;
        p[i] += rate * change;
      }
    });
  });
}

template <typename T>
void adagrad(const UpdateLoop& loop) {
  T* __restrict p = array<T>(loop.parameters);
  const T* __restrict g = static_cast<const T*>(loop.gradients);
  T* __restrict sum = array<T>(loop.state[0]);
  const T scale = static_cast<T>(loop.gradient_scale);
  const T rate = static_cast<T>(-loop.lr);
  const T decay = static_cast<T>(loop.weight_decay);
  const T eps = static_cast<T>(loop.eps);
  for (std::size_t i = 0; i < loop.length; ++i) {
    const T gradient = scale * g[i] + decay * p[i];
    sum[i] += gradient * gradient;
    p[i] += rate * (gradient / (root(sum[i]) + eps));
  }
}

template <typename T>
constexpr UpdateLoops update_loops() {
  return {.sgd = sgd<T>, .adam = adam<T>, .rmsprop = rmsprop<T>, .adagrad = adagrad<T>};
}

}  // namespace

const UpdateTable TUTTI_UPDATE_TABLE{.float32 = update_loops<float>(), .float64 = update_loops<double>()};

}  // namespace tutti::detail
