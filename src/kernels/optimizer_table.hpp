// The loops of each rule, compiled once for each set of instructions.
#pragma once

#include <cstddef>

namespace tutti::detail {

// What a loop is given. Which of the factors and switches a rule looks at, and which state it keeps where, is in
// optimizer_loops.hpp.
struct UpdateLoop {
  void* parameters = nullptr;
  const void* gradients = nullptr;
  void* const* state = nullptr;
  std::size_t length = 0;
  double gradient_scale = 1;
  double lr = 0;
  double weight_decay = 0;
  double decay1 = 0;  // of the first state: momentum, beta1, alpha
  double decay2 = 0;  // of the second
  double share1 = 0;  // of the gradient in the first
  double share2 = 0;
  double eps = 0;
  double correction2 = 1;  // the square root of Adam's second bias correction
  bool is_first = false;
  bool has_momentum = false;
  bool is_nesterov = false;
  bool is_centered = false;
  bool has_amsgrad = false;
  bool is_decoupled = false;  // the weight decay
};

struct UpdateLoops {
  void (*sgd)(const UpdateLoop&);
  void (*adam)(const UpdateLoop&);
  void (*rmsprop)(const UpdateLoop&);
  void (*adagrad)(const UpdateLoop&);
};

struct UpdateTable {
  UpdateLoops float32;
  UpdateLoops float64;
};

extern const UpdateTable kUpdateBaseline;
#if defined(__x86_64__)
extern const UpdateTable kUpdateAvx2;
extern const UpdateTable kUpdateAvx512;
#endif

}  // namespace tutti::detail
