#include <tutti/train/torch_optimizer.hpp>

#include <tuple>
#include <variant>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace tutti {
namespace {

namespace optim = torch::optim;
using Made = std::unique_ptr<optim::OptimizerOptions>;

Made options_of(const Sgd& rule) {
  return std::make_unique<optim::SGDOptions>(optim::SGDOptions(rule.lr)
                                                 .momentum(rule.momentum)
                                                 .dampening(rule.dampening)
                                                 .weight_decay(rule.weight_decay)
                                                 .nesterov(rule.nesterov));
}

template <typename Options, typename Rule>
Made options_of_adam(const Rule& rule) {
  return std::make_unique<Options>(Options(rule.lr)
                                       .betas({rule.beta1, rule.beta2})
                                       .eps(rule.eps)
                                       .weight_decay(rule.weight_decay)
                                       .amsgrad(rule.amsgrad));
}
Made options_of(const Adam& rule) { return options_of_adam<optim::AdamOptions>(rule); }
Made options_of(const AdamW& rule) { return options_of_adam<optim::AdamWOptions>(rule); }

Made options_of(const RmsProp& rule) {
  return std::make_unique<optim::RMSpropOptions>(optim::RMSpropOptions(rule.lr)
                                                     .alpha(rule.alpha)
                                                     .eps(rule.eps)
                                                     .weight_decay(rule.weight_decay)
                                                     .momentum(rule.momentum)
                                                     .centered(rule.centered));
}

Made options_of(const Adagrad& rule) {
  return std::make_unique<optim::AdagradOptions>(optim::AdagradOptions(rule.lr)
                                                     .lr_decay(rule.lr_decay)
                                                     .weight_decay(rule.weight_decay)
                                                     .initial_accumulator_value(rule.initial_accumulator_value)
                                                     .eps(rule.eps));
}

}  // namespace

std::unique_ptr<optim::OptimizerOptions> torch_options(const OptimizerRule& rule) {
  return std::visit([](const auto& its) { return options_of(its); }, rule);
}

}  // namespace tutti
