// Optimizer steps as loops over arrays. Every trainer uses these, so that a step gives the same bits wherever it is
// made.
//
//   const OptimizerRule rule = Adam{.lr = 1e-3, .weight_decay = 1e-2};
//   std::vector<std::vector<float>> state(state_count(rule), std::vector<float>(n, initial_state(rule)));
//   update(rule, step, {.type = DataType::float32, .parameters = p, .gradients = g, .state = pointers, .length = n});
//
// Each rule is what torch::optim does under that name, with the same options and defaults. Slices of the arrays may be
// updated by different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include <tutti/base/data_type.hpp>

namespace tutti {

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs a momentum, and no dampening

  bool operator==(const Sgd&) const = default;
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;

  bool operator==(const Adam&) const = default;
};

// Its weight decay does not pass through the moments.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;

  bool operator==(const AdamW&) const = default;
};

struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;

  bool operator==(const RmsProp&) const = default;
};

struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;

  bool operator==(const Adagrad&) const = default;
};

using OptimizerRule = std::variant<Sgd, Adam, AdamW, RmsProp, Adagrad>;

// "sgd", "adam", "adamw", "rmsprop", "adagrad".
std::string_view to_string(const OptimizerRule& rule);

// A UsageError names the option that cannot be: a negative rate, a beta outside [0, 1), Nesterov without momentum.
void refuse_unless_possible(const OptimizerRule& rule);

// How many arrays of state it keeps, each as long as the parameters, and what is in them before the first step.
std::size_t state_count(const OptimizerRule& rule);
double initial_state(const OptimizerRule& rule);

struct UpdateArrays {
  DataType type = DataType::float32;  // float32 or float64, of all of them
  void* parameters = nullptr;
  const void* gradients = nullptr;
  std::span<void* const> state = {};
  std::size_t length = 0;
  double gradient_scale = 1;  // what the gradients are multiplied by first
};

// The step-th update of these parameters, from 1 on. The arrays do not overlap.
void update(const OptimizerRule& rule, std::uint64_t step, const UpdateArrays& arrays);

}  // namespace tutti
