// A tensor that an operator needs in every call, made in the first one: a graph is checked without making any.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

namespace tutti::detail {

class MadeOnce {
 public:
  explicit MadeOnce(std::function<at::Tensor()> make) : state_(std::make_shared<State>()) {
    state_->make = std::move(make);
  }
  // From any thread.
  const at::Tensor& get() const {
    std::call_once(state_->flag, [this] {
      const c10::InferenceMode as_ever(false);  // whoever comes first may be evaluating, and the next one training
      state_->tensor = state_->make();
    });
    return state_->tensor;
  }

 private:
  struct State {
    std::once_flag flag;
    std::function<at::Tensor()> make;
    at::Tensor tensor;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tutti::detail
