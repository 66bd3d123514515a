// Modules, closures, batches and options that cannot be: what is said, and that nothing was changed.
#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/nn/data_parallel.hpp>

#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::data_parallel_misuse_test {
namespace {

using ::testing::AllOf;
using testing::Batch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Mlp;
using testing::Noisy;
using torch::Tensor;
using namespace std::chrono_literals;

const auto mse = [](auto& net, const auto& rows) { return torch::mse_loss(net.forward(rows.data), rows.target); };
const torch::optim::SGDOptions kSgd(0.1);

// --- replicas that are another function ---

// A layer that it does not register.
struct Secretive : torch::nn::Cloneable<Secretive> {
  Secretive() { reset(); }
  void reset() override {
    shown = register_module("shown", torch::nn::Linear(4, 3));
    hidden = torch::nn::Linear(4, 4);
  }
  Tensor forward(const Tensor& x) { return shown(hidden(x)); }

  torch::nn::Linear shown{nullptr};
  torch::nn::Linear hidden{nullptr};
};

// Its clones go on using the layer of the module that they were cloned from.
struct Clinging : torch::nn::Cloneable<Clinging> {
  Clinging() { reset(); }
  void reset() override {
    own = register_module("own", torch::nn::Linear(4, 4));
    torch::nn::Linear layer = register_module("clung_to", torch::nn::Linear(4, 3));
    if (!clung_to) clung_to = layer;
  }
  Tensor forward(const Tensor& x) { return clung_to(own(x)); }

  torch::nn::Linear own{nullptr};
  torch::nn::Linear clung_to{nullptr};
};

TEST(DataParallelMisuse, RefusesAReplicaThatIsAnotherFunction) {
  const Batch batch = testing::draw_batch(7, 1, torch::kFloat32);
  auto net = std::make_shared<Secretive>();
  DataParallel parallel(net, kSgd, {.replicas = 3});
  const testing::Contents before = testing::contents_of(*net);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(testing::usage_error([&] { parallel.step(batch, mse); }),
                AllOf(HasSubstr("replica 1 is another function than replica 0: on the same rows its loss is"),
                      HasSubstr("'shown.weight'"), HasSubstr("members that it does not register")));
  }
  testing::expect_same_bits(testing::contents_of(*net), before);
}

TEST(DataParallelMisuse, RefusesAReplicaThatUsesTheLayerOfAnother) {
  auto net = std::make_shared<Clinging>();
  DataParallel parallel(net, kSgd, {.replicas = 3});
  EXPECT_THAT(testing::usage_error([&] { parallel.step(testing::draw_batch(7, 1, torch::kFloat32), mse); }),
              HasSubstr("replica 1: its loss does not depend on its own 'clung_to.weight', 'clung_to.bias'"));
}

TEST(DataParallelMisuse, RefusesAClosureThatUsesAnotherModule) {
  const Batch batch = testing::draw_batch(7, 1, torch::kFloat32);
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  DataParallel parallel(net, kSgd, {.replicas = 2});
  const testing::Contents before = testing::contents_of(*net);
  EXPECT_THAT(
      testing::usage_error([&] { parallel.step(batch, [&](Mlp&, const Batch& rows) { return mse(*net, rows); }); }),
      AllOf(HasSubstr("replica 1: its loss does not depend on its own 'hidden.weight'"),
            HasSubstr("the closure must use the module that it is given")));
  testing::expect_same_bits(testing::contents_of(*net), before);
  EXPECT_GT(parallel.step(batch, mse), 0);

  // Of a module that is somebody else's altogether there is no gradient to be had.
  auto other = std::make_shared<Mlp>();
  DataParallel alone(net, kSgd, {.replicas = 1});
  EXPECT_THAT(
      testing::usage_error([&] { alone.step(batch, [&](Mlp&, const Batch& rows) { return mse(*other, rows); }); }),
      HasSubstr("the loss does not depend on any parameter of the module"));
}

TEST(DataParallelMisuse, RefusesAFactoryThatMakesSomethingElse) {
  const auto refusal = [](const std::function<std::shared_ptr<torch::nn::SequentialImpl>(int)>& make) {
    return testing::usage_error([&] {
      int made = 0;
      DataParallel<torch::nn::SequentialImpl> parallel([&] { return make(made++); }, kSgd, {.replicas = 2});
    });
  };
  using torch::nn::Linear;
  using torch::nn::Sequential;
  EXPECT_THAT(refusal([](int i) { return Sequential(Linear(4, 3 + i)).ptr(); }),
              HasSubstr("the parameter '0.weight' is Float [3, 4] in the first replica and Float [4, 4] in another"));
  EXPECT_EQ(refusal([](int i) {
              return i == 0 ? Sequential(Linear(4, 4), Linear(4, 3)).ptr() : Sequential(Linear(4, 4)).ptr();
            }),
            "a replica has no parameter '1.weight'");
  EXPECT_EQ(refusal([](int i) {
              return i == 1 ? Sequential(Linear(4, 4), Linear(4, 3)).ptr() : Sequential(Linear(4, 4)).ptr();
            }),
            "a replica has a parameter '1.weight', which the first one lacks");
  EXPECT_EQ(refusal([](int i) {
              return i == 0 ? Sequential(Linear(4, 4), torch::nn::Tanh()).ptr() : Sequential(Linear(4, 4)).ptr();
            }),
            "the module has 2 modules in it, and a replica 1");
  EXPECT_THAT(refusal([](int i) {
                Sequential net(Linear(4, 4));
                if (i == 1) net->to(torch::kFloat64);
                return net.ptr();
              }),
              HasSubstr("Float [4, 4] in the first replica and Double [4, 4] in another"));
  EXPECT_EQ(refusal([](int i) {
              return Sequential(Linear(4, 3),
                                torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(3).track_running_stats(i == 0)))
                  .ptr();
            }),
            "a replica has no buffer '1.running_mean'");
  EXPECT_EQ(refusal([](int i) { return i == 0 ? Sequential(Linear(4, 4)).ptr() : nullptr; }),
            "the factory made no module");
  EXPECT_EQ(refusal([](int) { return nullptr; }), "there is no module to train");
  EXPECT_THAT(refusal([same = Sequential(Linear(4, 4)).ptr()](int) { return same; }),
              HasSubstr("two replicas have the same '0.weight'"));
}

struct Uncloneable : torch::nn::Module {
  Uncloneable() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  Tensor forward(const Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};

// Registers in its constructor what belongs into reset().
struct Forgetful : torch::nn::Cloneable<Forgetful> {
  Forgetful() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  void reset() override {}
  Tensor forward(const Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};

TEST(DataParallelMisuse, SaysWhatToDoWithAModuleThatCannotBeCloned) {
  EXPECT_THAT(
      testing::usage_error([] { DataParallel parallel(std::make_shared<Uncloneable>(), kSgd, {.replicas = 2}); }),
      AllOf(HasSubstr("the module cannot be cloned"),
            HasSubstr("derive it from torch::nn::Cloneable, or give a factory")));
  EXPECT_THAT(testing::usage_error([] { DataParallel parallel(std::make_shared<Forgetful>(), kSgd, {.replicas = 2}); }),
              HasSubstr("Are you sure you called register_module() inside reset()"));
  const Batch batch = testing::draw_batch(5, 1, torch::kFloat32);
  DataParallel alone(std::make_shared<Uncloneable>(), kSgd, {.replicas = 1});
  const double first = alone.step(batch, mse);
  EXPECT_LT(alone.step(batch, mse), first);

  DataParallel<Uncloneable> made([] { return std::make_shared<Uncloneable>(); }, kSgd, {.replicas = 3});
  auto expected = std::make_shared<Uncloneable>();
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) expected->parameters()[i].copy_(made.module()->parameters()[i]);
  }
  torch::optim::SGD optimizer(expected->parameters(), kSgd);
  made.step(batch, mse);
  mse(*expected, batch).backward();
  optimizer.step();
  testing::expect_close(*made.module(), *expected, 1e-6);
}

// --- a step that fails has changed nothing ---

// What the optimizer remembers, as it would be saved.
std::vector<Tensor> state_of(torch::optim::Optimizer& optimizer) {
  std::vector<Tensor> state;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(c10::guts::to_string(parameter.unsafeGetTensorImpl()));
      if (found == optimizer.state().end()) continue;
      const auto& its = static_cast<const torch::optim::AdamParamState&>(*found->second);
      state.push_back(its.exp_avg().clone());
      state.push_back(its.exp_avg_sq().clone());
      state.push_back(torch::tensor(its.step()));
    }
  }
  return state;
}

struct Failing {
  std::string name;
  std::function<void(DataParallel<Noisy>&)> step;
};

template <typename Loss>
void step_with(DataParallel<Noisy>& parallel, const Loss& loss) {
  parallel.step(testing::draw_batch(12, 9, torch::kFloat32), loss);
}

std::vector<Failing> failing_steps() {
  // Replica 1's first row is among these.
  const auto is_replica_1 = [row = testing::draw_batch(12, 9, torch::kFloat32).data[1]](const Batch& rows) {
    return (rows.data == row).all(1).any().item<bool>();
  };
  const auto expect_usage_error = [](const auto& step, const auto& text) {
    return [=](DataParallel<Noisy>& parallel) {
      EXPECT_THAT(testing::usage_error([&] { step(parallel); }), HasSubstr(text));
    };
  };
  const auto with_batch = [](const auto& change) {
    return [=](DataParallel<Noisy>& parallel) {
      Batch batch = testing::draw_batch(12, 9, torch::kFloat32);
      change(batch);
      parallel.step(batch, mse);
    };
  };
  const auto with_loss = [](const auto& loss) {
    return [=](DataParallel<Noisy>& parallel) { step_with(parallel, loss); };
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  return {
      {"NaN in a row of replica 1",
       expect_usage_error(with_batch([=](Batch& batch) { batch.data[1][2] = nan; }),
                          "the gradient of 'hidden.weight' is not finite (NaN or infinite); nothing was changed")},
      {"NaN in a row of replica 0", expect_usage_error(with_batch([=](Batch& batch) { batch.data[0][2] = nan; }),
                                                       "the gradient of 'hidden.weight' is not finite")},
      {"an infinite target",
       expect_usage_error(with_batch([=](Batch& batch) { batch.target[0][0] = infinity; }), "is not finite")},
      {"an infinite gradient of one parameter alone",
       expect_usage_error(
           with_loss([](Noisy& net, const Batch& rows) { return mse(net, rows) + net.out->bias.sum() * 1e38 * 1e38; }),
           "the gradient of 'out.bias' is not finite")},
      {"a closure that throws in replica 1",
       [=](DataParallel<Noisy>& parallel) {
         EXPECT_THAT(
             [&] {
               step_with(parallel, [&](Noisy& net, const Batch& rows) {
                 Tensor loss = mse(net, rows);
                 if (is_replica_1(rows)) throw std::out_of_range("row 1 is missing");
                 return loss;
               });
             },
             ::testing::ThrowsMessage<std::out_of_range>("row 1 is missing"));
       }},
      {"an error of libtorch",
       [](DataParallel<Noisy>& parallel) {
         EXPECT_THROW(
             step_with(parallel, [](Noisy& net, const Batch& rows) { return mse(net, rows) + net.out(rows.data); }),
             c10::Error);
       }},
      {"a negative weight", expect_usage_error(with_loss([=](Noisy& net, const Batch& rows) {
                                                 return WeightedLoss{mse(net, rows), is_replica_1(rows) ? -1.0 : 1.0};
                                               }),
                                               "shard 1: expected a weight from 0 on, found -1")},
      {"a weight that is no number", expect_usage_error(with_loss([=](Noisy& net, const Batch& rows) {
                                                          return WeightedLoss{mse(net, rows), static_cast<double>(nan)};
                                                        }),
                                                        "expected a weight from 0 on, found nan")},
      {"weights of 0", expect_usage_error(with_loss([](Noisy& net, const Batch& rows) {
                                            return WeightedLoss{mse(net, rows), 0.0};
                                          }),
                                          "all rows of the batch weigh nothing together, so they have no mean loss")},
      {"a loss for each row",
       expect_usage_error(with_loss([](Noisy& net, const Batch& rows) {
                            return (net.forward(rows.data) - rows.target).pow(2).mean(1);
                          }),
                          "the loss has the shape [6]; expected one number, the mean over its rows")},
      {"no loss", expect_usage_error(with_loss([](Noisy& net, const Batch& rows) {
                                       net.forward(rows.data);
                                       return Tensor();
                                     }),
                                     "shard 0: there is no loss")},
      {"a loss without a gradient",
       expect_usage_error(with_loss([](Noisy& net, const Batch& rows) { return mse(net, rows).detach(); }),
                          "shard 0: the loss does not depend on any parameter that is trained")},
      {"a batch without rows",
       expect_usage_error(
           [](DataParallel<Noisy>& parallel) { parallel.step(testing::draw_batch(0, 9, torch::kFloat32), mse); },
           "a batch without rows has no loss")},
      {"no gradients wanted", expect_usage_error(
                                  [](DataParallel<Noisy>& parallel) {
                                    const torch::NoGradGuard no_grad;
                                    step_with(parallel, mse);
                                  },
                                  "a step needs gradients, and the caller has them switched off")},
      {"inference mode", expect_usage_error(
                             [](DataParallel<Noisy>& parallel) {
                               const c10::InferenceMode guard;
                               step_with(parallel, mse);
                             },
                             "a step needs gradients, and the caller has them switched off")},
      {"a learning rate that cannot be",
       expect_usage_error(
           [](DataParallel<Noisy>& parallel) {
             torch::optim::OptimizerOptions& options = parallel.optimizer().param_groups()[0].options();
             const double before = options.get_lr();
             options.set_lr(-1);
             const auto restore = [&](void*) { options.set_lr(before); };
             const std::unique_ptr<void, decltype(restore)> at_the_end(&options, restore);
             step_with(parallel, mse);
           },
           "adam: lr: expected a number from 0 on, found -1")},
  };
}

void expect_nothing_changed(const DataParallelOptions& options) {
  for (const Failing& failing : failing_steps()) {
    for (int steps_before : {0, options.accumulate + 1}) {
      SCOPED_TRACE(failing.name + " after " + std::to_string(steps_before) + " steps");
      auto net = testing::make_net<Noisy>(torch::kFloat32);
      auto undisturbed = testing::copy_of(net);
      DataParallel parallel(net, torch::optim::AdamOptions(0.01), options);
      DataParallel expected(undisturbed, torch::optim::AdamOptions(0.01), options);
      const auto step = [](DataParallel<Noisy>& trained, int number) {
        return trained.step(testing::draw_batch(12, static_cast<std::uint64_t>(number), torch::kFloat32), mse);
      };
      for (int i = 0; i < steps_before; ++i) {
        step(parallel, i);
        step(expected, i);
      }
      const testing::Contents before = testing::contents_of(*net);
      const std::vector<Tensor> state_before = state_of(parallel.optimizer());
      const double loss_before = parallel.report().loss;
      failing.step(parallel);
      testing::expect_same_bits(testing::contents_of(*net), before);
      const std::vector<Tensor> state = state_of(parallel.optimizer());
      ASSERT_EQ(state.size(), state_before.size());
      for (std::size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(testing::has_same_bits(state[i], state_before[i]));
      EXPECT_EQ(parallel.report().loss, loss_before) << "the report is the last step's that was made";
      // It goes on as if nothing had been, with what was accumulated, and the same draws.
      for (int i = steps_before; i < steps_before + 2 * options.accumulate; ++i)
        EXPECT_EQ(step(parallel, i), step(expected, i));
      testing::expect_same_bits(*net, *undisturbed);
    }
  }
}

TEST(DataParallelMisuse, AStepThatFailsHasChangedNothing) { expect_nothing_changed({.replicas = 2}); }
TEST(DataParallelMisuse, RefusesAClosureThatUsesAnotherModuleBesideTheOneItIsGiven) {
  auto net = std::make_shared<Mlp>();
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2});
  const Batch batch = testing::draw_batch(6, 1, torch::kFloat32);
  const std::string message = testing::usage_error([&] {
    parallel.step(batch, [&](Mlp& replica, const Batch& rows) {
      Tensor loss = mse(replica, rows);
      for (const Tensor& parameter : net->parameters()) loss = loss + 0.1 * parameter.pow(2).sum();
      return loss;
    });
  });
  EXPECT_THAT(message, HasSubstr("the closure must use the module that it is given, and no other"));
}

TEST(DataParallelMisuse, RefusesAClosureThatUsesAnotherModuleInALaterStep) {
  auto net = std::make_shared<Mlp>();
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2});
  const Batch batch = testing::draw_batch(6, 1, torch::kFloat32);
  parallel.step(batch, mse);
  EXPECT_THAT(
      testing::usage_error([&] { parallel.step(batch, [&](Mlp&, const Batch& rows) { return mse(*net, rows); }); }),
      HasSubstr("replica 1: its loss does not depend on any of its own parameters"));
}

TEST(DataParallelMisuse, RefusesAStepWithinAStep) {
  auto net = std::make_shared<Mlp>();
  DataParallel parallel(net, torch::optim::SGDOptions(0.1), {.replicas = 2});
  const Batch batch = testing::draw_batch(6, 1, torch::kFloat32);
  EXPECT_THAT(testing::usage_error([&] {
                parallel.step(batch, [&](Mlp& replica, const Batch& rows) {
                  parallel.step(rows, mse);
                  return mse(replica, rows);
                });
              }),
              HasSubstr("a step is in progress"));
  parallel.step(batch, mse);
}

// Each step's gradient is finite, and what they add up to is not.
TEST(DataParallelMisuse, RefusesWhatOverflowsWhileAccumulating) {
  auto net = std::make_shared<Mlp>();
  DataParallel parallel(net, torch::optim::SGDOptions(1e-3), {.replicas = 2, .accumulate = 2});
  const Batch batch = testing::draw_batch(4, 1, torch::kFloat32);
  // Only a bias is trained: its gradient is 1 for each row.
  for (Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  net->parameters().back().set_requires_grad(true);
  const auto huge = [](Mlp& replica, const Batch& rows) {
    return replica.forward(rows.data).sum() * (2e38 / 8);  // 2 rows and a weight of 2 on each of 2 replicas
  };
  const auto before = testing::copy_of(net);
  parallel.step(batch, huge);
  EXPECT_THAT(testing::usage_error([&] { parallel.step(batch, huge); }), HasSubstr("is not finite"));
  testing::expect_close(*net, *before, 0);
}

TEST(DataParallelMisuse, AStepThatFailsHasChangedNothingWhileAccumulating) {
  expect_nothing_changed({.replicas = 2, .clip_norm = 0.5, .accumulate = 3});
}
TEST(DataParallelMisuse, AStepThatFailsHasChangedNothingUnderANamedAlgorithm) {
  expect_nothing_changed({.replicas = 2, .algorithm = Ring{}, .buffers = Buffers::averaged});
}
TEST(DataParallelMisuse, AStepThatFailsHasChangedNothingUnderACompression) {
  expect_nothing_changed({.replicas = 2, .compression = TopK{.fraction = 0.2}});
}
TEST(DataParallelMisuse, AStepThatFailsHasChangedNothingUnderSyncBatchNorm) {
  const auto start = std::chrono::steady_clock::now();
  expect_nothing_changed({.replicas = 2, .sync_batch_norm = true, .deadline = 60s});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s) << "nobody waits for a replica that failed";
}

TEST(DataParallelMisuse, LetsNaNPassWhereItIsNotRefused) {
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  DataParallel parallel(net, kSgd, {.replicas = 2, .refuse_nan = false});
  Batch batch = testing::draw_batch(4, 1, torch::kFloat32);
  batch.data[1][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(parallel.step(batch, mse)));
  EXPECT_TRUE(net->out->bias.isnan().all().item<bool>());
}

// --- frozen and unused parameters, modes, and what becomes of the module between steps ---

TEST(DataParallelMisuse, LeavesFrozenParametersAlone) {
  const Batch batch = testing::draw_batch(7, 1);
  for (bool before_construction : {true, false}) {
    auto net = testing::make_net<Mlp>(torch::kFloat64);
    auto expected = testing::copy_of(net);
    const auto freeze = [](Mlp& its) { its.hidden->weight.set_requires_grad(false); };
    if (before_construction) freeze(*net);
    DataParallel parallel(net, torch::optim::AdamOptions(0.1), {.replicas = 3});
    if (!before_construction) {
      parallel.step(batch, mse);
      for (const auto& item : net->named_parameters()) {
        const torch::NoGradGuard no_grad;
        expected->named_parameters()[item.key()].copy_(item.value());
      }
      freeze(*net);
    }
    for (int i = 0; i < 2; ++i) parallel.step(batch, mse);
    EXPECT_THAT(parallel.report().unused, IsEmpty());
    EXPECT_TRUE(testing::has_same_bits(net->hidden->weight, expected->hidden->weight));
    EXPECT_FALSE(testing::has_same_bits(net->hidden->bias, expected->hidden->bias));
    net->hidden->weight.set_requires_grad(true);
    parallel.step(batch, mse);
    EXPECT_FALSE(testing::has_same_bits(net->hidden->weight, expected->hidden->weight));
  }
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  DataParallel parallel(net, kSgd, {.replicas = 2});
  for (Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  EXPECT_THAT(testing::usage_error([&] { parallel.step(batch, mse); }),
              HasSubstr("the loss does not depend on any parameter that is trained"));
}

TEST(DataParallelMisuse, NamesUnusedParametersAndLeavesThemAlone) {
  const auto use_hidden_alone = [](Mlp& its, const Batch& rows) { return its.hidden(rows.data).pow(2).mean(); };
  const Batch batch = testing::draw_batch(7, 1);
  for (const testing::OptimizerCase& one : testing::optimizer_cases()) {
    SCOPED_TRACE(one.name);
    for (bool refuse_nan : {true, false}) {
      auto net = testing::make_net<Mlp>(torch::kFloat64);
      auto expected = testing::copy_of(net);
      DataParallel parallel(net, *one.options, {.replicas = 3, .refuse_nan = refuse_nan});
      const auto optimizer =
          detail::make_optimizer({torch::optim::OptimizerParamGroup(expected->parameters())}, *one.options);
      const auto torch_step = [&](const auto& loss) {
        for (Tensor& parameter : expected->parameters()) parameter.mutable_grad() = Tensor();
        loss(*expected, batch).backward();
        optimizer->step();
      };
      parallel.step(batch, mse);
      torch_step(mse);
      EXPECT_THAT(parallel.report().unused, IsEmpty());
      const Tensor before = net->out->weight.detach().clone();
      for (int i = 0; i < 3; ++i) {
        parallel.step(batch, use_hidden_alone);
        torch_step(use_hidden_alone);
      }
      EXPECT_THAT(parallel.report().unused, ElementsAre("out.weight", "out.bias"));
      EXPECT_TRUE(testing::has_same_bits(net->out->weight, before));
      parallel.step(batch, mse);
      torch_step(mse);
      testing::expect_close(*net, *expected, 1e-9);
    }
  }
}

TEST(DataParallelMisuse, AParameterThatOnlySomeReplicasUseIsTrained) {
  const auto loss = [](Mlp& its, const Batch& rows) {
    Tensor output = its.hidden(rows.data).pow(2).mean(1, true);
    const Tensor chosen = rows.target.narrow(1, 0, 1) > 0;
    if (chosen.any().item<bool>())
      output = torch::where(chosen, its.out(its.hidden(rows.data)).pow(2).mean(1, true), output);
    return output.mean();
  };
  auto net = testing::make_net<Mlp>(torch::kFloat64);
  auto expected = testing::copy_of(net);
  DataParallel parallel(net, kSgd, {.replicas = 3});
  torch::optim::SGD optimizer(expected->parameters(), kSgd);
  Batch batch = testing::draw_batch(3, 1);
  batch.target = torch::tensor({{-1.0}, {1.0}, {-1.0}}, torch::kFloat64);
  parallel.step(batch, loss);
  EXPECT_THAT(parallel.report().unused, IsEmpty());
  loss(*expected, batch).backward();
  optimizer.step();
  testing::expect_close(*net, *expected, 1e-9);
}

TEST(DataParallelMisuse, FollowsModesOfSubmodules) {
  auto net = testing::make_net<Noisy>(torch::kFloat64);
  DataParallel parallel(net, kSgd, {.replicas = 3});
  const Batch batch = testing::draw_batch(9, 1);
  std::atomic<int> trained = 0;
  const auto loss = [&](Noisy& its, const Batch& rows) {
    trained += its.norm->is_training() ? 1 : 0;
    EXPECT_TRUE(its.is_training());
    return mse(its, rows);
  };
  parallel.step(batch, loss);
  EXPECT_GT(trained, 0);
  trained = 0;
  net->norm->eval();
  const Tensor mean = net->norm->running_mean.clone();
  parallel.step(batch, loss);
  EXPECT_EQ(trained, 0);
  EXPECT_TRUE(testing::has_same_bits(net->norm->running_mean, mean));
  EXPECT_FALSE(net->norm->is_training());
  net->train();
  parallel.step(batch, loss);
  EXPECT_EQ(trained, 3);
}

TEST(DataParallelMisuse, FollowsParametersThatAreMovedAndRefusesOtherTypesAndShapes) {
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  const Batch batch = testing::draw_batch(7, 1, torch::kFloat32);
  DataParallel parallel(net, kSgd, {.replicas = 2});
  parallel.step(batch, mse);
  net->hidden->weight.set_data(net->hidden->weight.detach().clone());
  auto expected = testing::copy_of(net);
  parallel.step(batch, mse);
  mse(*expected, batch).backward();
  torch::optim::SGD(expected->parameters(), kSgd).step();
  testing::expect_close(*net, *expected, 1e-6);

  net->to(torch::kFloat64);
  EXPECT_EQ(testing::usage_error([&] { parallel.step(testing::draw_batch(7, 1), mse); }),
            "the parameter 'hidden.weight' has changed its type since training began");
  net->to(torch::kFloat32);
  parallel.step(batch, mse);
  net->out->bias.set_data(torch::zeros(1));
  EXPECT_EQ(testing::usage_error([&] { parallel.step(batch, mse); }),
            "the parameter 'out.bias' has changed its shape since training began");
}

// --- options ---

TEST(DataParallelMisuse, SaysWhichOptionCannotBe) {
  const auto refusal = [](const DataParallelOptions& options) {
    return testing::usage_error([&] { DataParallel parallel(testing::make_net<Mlp>(torch::kFloat32), kSgd, options); });
  };
  EXPECT_EQ(refusal({.replicas = -1}), "replicas: expected a number from 0 on, found -1");
  EXPECT_EQ(refusal({.logical_shards = -2}), "logical_shards: expected a number from 0 on, found -2");
  EXPECT_EQ(refusal({.replicas = 3, .logical_shards = 2}),
            "logical_shards: expected at least one for each of 3 replicas, found 2");
  EXPECT_EQ(refusal({.accumulate = 0}), "accumulate: expected at least 1 step, found 0");
  EXPECT_EQ(refusal({.clip_norm = -1}), "clip_norm: expected a number from 0 on, found -1");
  EXPECT_EQ(refusal({.clip_norm = std::numeric_limits<double>::infinity()}),
            "clip_norm: expected a number from 0 on, found inf");
  EXPECT_THAT(refusal({.algorithm = Tree{.arity = 0}}), HasSubstr("arity"));
  EXPECT_THAT(refusal({.compression = TopK{.fraction = 2}}), HasSubstr("TopK"));
  EXPECT_EQ(refusal({.replicas = 2, .algorithm = Ring{}, .logical_shards = 4}),
            "logical_shards: the same bits on any number of replicas need the algorithm Auto and no compression, found "
            "Ring and NoCompression");
  EXPECT_EQ(refusal({.replicas = 2, .compression = Float16{}, .logical_shards = 4}),
            "logical_shards: the same bits on any number of replicas need the algorithm Auto and no compression, found "
            "Auto and Float16");
  EXPECT_EQ(refusal({.replicas = 2, .logical_shards = 4, .sync_batch_norm = true}),
            "sync_batch_norm: all shards must be computed at the same time, and 4 shards are for 2 replicas");
  EXPECT_EQ(refusal({.replicas = 2}), "(no error)");
  EXPECT_EQ(refusal({}), "(no error)");

  DataParallel parallel(testing::make_net<Noisy>(torch::kFloat32), kSgd, {.replicas = 3, .sync_batch_norm = true});
  EXPECT_EQ(testing::usage_error([&] { parallel.step(testing::draw_batch(2, 1, torch::kFloat32), mse); }),
            "sync_batch_norm: every replica needs a row, found 2 rows for 3 replicas");
}

TEST(DataParallelMisuse, SaysWhichModuleOrOptimizerCannotBe) {
  EXPECT_EQ(testing::usage_error([] { DataParallel parallel(std::shared_ptr<Mlp>(), kSgd, {.replicas = 2}); }),
            "there is no module to train");
  auto net = testing::make_net<Mlp>(torch::kFloat32);
  EXPECT_EQ(testing::usage_error(
                [&] { DataParallel parallel(net, std::shared_ptr<torch::optim::Optimizer>(), {.replicas = 2}); }),
            "there is no optimizer");
  const auto refusal = [&](std::shared_ptr<torch::optim::Optimizer> optimizer) {
    return testing::usage_error([&] { DataParallel parallel(net, std::move(optimizer), {.replicas = 2}); });
  };
  EXPECT_THAT(refusal(std::make_shared<torch::optim::LBFGS>(net->parameters(), torch::optim::LBFGSOptions(1))),
              HasSubstr("LBFGS wants to evaluate the loss several times a step"));
  EXPECT_EQ(refusal(std::make_shared<torch::optim::SGD>(Mlp().parameters(), 0.1)),
            "the optimizer has a parameter that is not the module's");
  EXPECT_THAT(testing::usage_error([&] { DataParallel parallel(net, torch::optim::LBFGSOptions(1)); }),
              HasSubstr("give the optimizer itself"));
  EXPECT_EQ(testing::usage_error(
                [] { DataParallel parallel(torch::nn::Sequential(torch::nn::Tanh()), kSgd, {.replicas = 2}); }),
            "the module has no parameters");
  EXPECT_THAT(testing::usage_error(
                  [] { DataParallel parallel(testing::make_net<Mlp>(torch::kBFloat16), kSgd, {.replicas = 2}); }),
              AllOf(HasSubstr("the parameter 'hidden.weight' is BFloat16"), HasSubstr("for bfloat16 take autocast")));
  torch::nn::Sequential mixed(torch::nn::Linear(4, 4), torch::nn::Linear(4, 3));
  mixed[1]->to(torch::kFloat64);
  EXPECT_THAT(testing::usage_error([&] { DataParallel parallel(mixed, kSgd, {.replicas = 2, .algorithm = Ring{}}); }),
              HasSubstr("needs parameters of one type"));
}

TEST(DataParallelMisuse, NamesAParameterWhoseGradientIsSparse) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  DataParallel parallel(net, kSgd, {.replicas = 2});
  EXPECT_THAT(testing::usage_error([&] {
                parallel.step(torch::tensor({0, 1, 2, 3}, torch::kInt64),
                              [](torch::nn::EmbeddingImpl& its, Tensor& rows) { return its.forward(rows).sum(); });
              }),
              HasSubstr("the gradient of 'weight' is sparse"));
}

TEST(DataParallelMisuse, AReplicaThatMissesTheDeadlineIsNamedAndMayStillGoOnWhenAllElseIsGone) {
  struct Gate {
    std::latch opened{1};
    std::latch passed{1};
  };
  const auto gate = std::make_shared<Gate>();
  {
    auto net = testing::make_net<Mlp>(torch::kFloat32);
    DataParallel parallel(net, kSgd, {.replicas = 3, .deadline = 60s});
    parallel.step(testing::draw_batch(9, 1, torch::kFloat32), mse);
    DataParallel hasty(net, kSgd, {.replicas = 3, .deadline = 300ms});
    for (int attempt = 0; attempt < 2; ++attempt) {
      const Batch batch = testing::draw_batch(9, 1, torch::kFloat32);
      try {
        hasty.step(batch, [gate, first = net.get()](Mlp& replica, const Batch& rows) {
          static std::atomic<int> others{0};
          const bool is_held = &replica != first && others++ == 0;
          if (is_held) gate->opened.wait();
          Tensor loss = mse(replica, rows);
          if (is_held) loss.register_hook([gate](const Tensor&) { gate->passed.count_down(); });
          return loss;
        });
        ADD_FAILURE() << "nobody was missed";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.kind(), FailureKind::late);
        EXPECT_EQ(error.ranks().size(), 1u);
        EXPECT_THAT(error.what(), HasSubstr(" was not through in time"));
      }
    }
  }
  gate->opened.count_down();
  gate->passed.wait();
}

}  // namespace
}  // namespace tutti::data_parallel_misuse_test
