#include <tutti/nn/random_draws.hpp>

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tutti::random_draws_test {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using Gen = c10::optional<at::Generator>;
namespace F = torch::nn::functional;

constexpr RandomDrawsKey kKey{.seed = 7, .step = 1, .shard = 2, .place = 3};

Tensor values() { return torch::linspace(0.1, 0.9, 300, torch::kFloat64); }
Tensor space() { return torch::zeros({300}, torch::kFloat64); }

// One way to draw, from a generator or from the default one.
struct Draw {
  const char* name;
  std::function<Tensor(const Gen&)> draw;
};

const std::vector<Draw>& operators() {
  static const std::vector<Draw> all{
      {"bernoulli_.float", [](const Gen& g) { return space().bernoulli_(0.5, g); }},
      {"bernoulli_.Tensor", [](const Gen& g) { return space().bernoulli_(values(), g); }},
      {"bernoulli.out",
       [](const Gen& g) {
         Tensor out = space();
         return at::bernoulli_out(out, values(), g);
       }},
      {"bernoulli", [](const Gen& g) { return at::bernoulli(values(), g); }},
      {"bernoulli.p", [](const Gen& g) { return at::bernoulli(values(), 0.5, g); }},
      {"uniform_", [](const Gen& g) { return space().uniform_(0, 1, g); }},
      {"normal_", [](const Gen& g) { return space().normal_(0, 1, g); }},
      {"normal_ of floats", [](const Gen& g) { return space().to(torch::kFloat32).normal_(0, 1, g); }},
      {"normal.Tensor_float", [](const Gen& g) { return at::normal(values(), 1., g); }},
      {"normal.float_Tensor", [](const Gen& g) { return at::normal(1., values(), g); }},
      {"normal.Tensor_Tensor", [](const Gen& g) { return at::normal(values(), values(), g); }},
      {"normal.Tensor_float_out",
       [](const Gen& g) {
         Tensor o = space();
         return at::normal_out(o, values(), 1., g);
       }},
      {"normal.float_Tensor_out",
       [](const Gen& g) {
         Tensor o = space();
         return at::normal_out(o, 1., values(), g);
       }},
      {"normal.Tensor_Tensor_out",
       [](const Gen& g) {
         Tensor o = space();
         return at::normal_out(o, values(), values(), g);
       }},
      {"normal.float_float", [](const Gen& g) { return at::normal(0., 1., {300}, g); }},
      {"log_normal_", [](const Gen& g) { return space().log_normal_(0, 1, g); }},
      {"cauchy_", [](const Gen& g) { return space().cauchy_(0, 1, g); }},
      {"exponential_", [](const Gen& g) { return space().exponential_(1, g); }},
      {"geometric_", [](const Gen& g) { return space().geometric_(0.3, g); }},
      {"random_", [](const Gen& g) { return space().random_(g); }},
      {"random_.to", [](const Gen& g) { return space().random_(1000, g); }},
      {"random_.from", [](const Gen& g) { return space().random_(5, 1000, g); }},
      {"randperm", [](const Gen& g) { return at::randperm(300, g, torch::kInt64, {}, {}, {}); }},
      {"multinomial", [](const Gen& g) { return at::multinomial(values(), 100, true, g); }},
      {"multinomial without replacement", [](const Gen& g) { return at::multinomial(values(), 100, false, g); }},
      {"multinomial.out",
       [](const Gen& g) {
         Tensor out = torch::empty({0}, torch::kInt64);
         return at::multinomial_out(out, values(), 100, true, g);
       }},
      {"poisson", [](const Gen& g) { return at::poisson(values() * 10, g); }},
      {"binomial", [](const Gen& g) { return at::binomial(values() * 0 + 20, values(), g); }},
      {"_standard_gamma", [](const Gen& g) { return at::_standard_gamma(values(), g); }},
      {"_sample_dirichlet",
       [](const Gen& g) {
         return at::_sample_dirichlet(values().view({30, 10}), g);
       }},
      {"rrelu_with_noise", [](const Gen& g) { return at::rrelu_with_noise(-values(), space(), 0.1, 0.3, true, g); }},
      {"rrelu_with_noise.out",
       [](const Gen& g) {
         Tensor out = space();
         return at::rrelu_with_noise_out(out, -values(), space(), 0.1, 0.3, true, g);
       }},
      {"rrelu_with_noise_",
       [](const Gen& g) {
         Tensor self = -values();
         return at::rrelu_with_noise_(self, space(), 0.1, 0.3, true, g);
       }},
      {"rrelu", [](const Gen& g) { return at::rrelu(-values(), 0.1, 0.3, true, g); }},
      {"rand", [](const Gen& g) { return at::rand({300}, g, torch::kFloat32, {}, {}, {}); }},
      {"randn", [](const Gen& g) { return at::randn({300}, g, torch::kFloat32, {}, {}, {}); }},
      {"randn of complex numbers", [](const Gen& g) { return at::randn({300}, g, torch::kComplexFloat, {}, {}, {}); }},
      {"randint", [](const Gen& g) { return at::randint(0, 1000, {300}, g, torch::kInt64, {}, {}, {}); }},
  };
  return all;
}

// What takes no generator, made of the operators above.
Tensor dropped(const std::function<Tensor(const Tensor&)>& dropout) { return dropout(torch::ones({4, 20, 10})); }

const std::vector<Draw>& layers() {
  static const std::vector<Draw> all{
      {"dropout", [](const Gen&) { return dropped([](const Tensor& x) { return torch::dropout(x, 0.5, true); }); }},
      {"dropout_", [](const Gen&) { return dropped([](Tensor x) { return torch::dropout_(x, 0.5, true); }); }},
      {"native_dropout",
       [](const Gen&) {
         return dropped([](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.5, true)); });
       }},
      {"feature_dropout",
       [](const Gen&) { return dropped([](const Tensor& x) { return torch::feature_dropout(x, 0.5, true); }); }},
      {"alpha_dropout",
       [](const Gen&) { return dropped([](const Tensor& x) { return torch::alpha_dropout(x, 0.5, true); }); }},
      {"feature_alpha_dropout",
       [](const Gen&) { return dropped([](const Tensor& x) { return torch::feature_alpha_dropout(x, 0.5, true); }); }},
      {"rand_like", [](const Gen&) { return torch::rand_like(values()); }},
      {"randn_like", [](const Gen&) { return torch::randn_like(values()); }},
      {"randint_like", [](const Gen&) { return torch::randint_like(values(), 1000); }},
      {"randperm.out",
       [](const Gen&) {
         Tensor out = torch::empty({300}, torch::kInt64);
         return at::randperm_out(out, 300);
       }},
      {"gumbel_softmax",
       [](const Gen&) {
         return F::gumbel_softmax(values().view({30, 10}));
       }},
      {"rrelu module", [](const Gen&) { return torch::nn::RReLU()(-values()); }},
      {"fractional_max_pool2d",
       [](const Gen&) {
         return F::fractional_max_pool2d(torch::arange(1000.).view({10, 1, 10, 10}),
                                         F::FractionalMaxPool2dFuncOptions(2).output_size(7));
       }},
      {"kaiming_uniform_",
       [](const Gen&) {
         return torch::nn::init::kaiming_uniform_(torch::empty({20, 20}));
       }},
      {"Linear", [](const Gen&) { return torch::nn::Linear(10, 10)->weight.detach(); }},
  };
  return all;
}

std::vector<Draw> everything() {
  std::vector<Draw> all = operators();
  all.insert(all.end(), layers().begin(), layers().end());
  return all;
}

Tensor in_scope(const RandomDrawsKey& key, const Draw& draw) {
  const RandomDraws scope(key);
  return draw.draw({});
}

// Threads that draw from libtorch's default generator, and in scopes of their own, as long as this lives.
class Noise {
 public:
  Noise() {
    for (std::uint64_t i = 0; i < 2; ++i) {
      threads_.emplace_back([this, i] {
        for (std::uint64_t step = 0; !stop_; ++step) {
          torch::rand({10});
          const RandomDraws scope({.seed = 99, .step = step, .shard = i});
          torch::randn({100});
        }
      });
    }
  }
  Noise(const Noise&) = delete;
  Noise& operator=(const Noise&) = delete;
  ~Noise() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

TEST(RandomDraws, OfOneKeyAreTheSameOnAnyThreadWhileOthersDraw) {
  for (const Draw& draw : everything()) {
    SCOPED_TRACE(draw.name);
    const Tensor alone = in_scope(kKey, draw);
    EXPECT_TRUE(in_scope(kKey, draw).equal(alone));
    const Noise noise;
    for (int round = 0; round < 3; ++round) {
      Tensor elsewhere;
      std::thread([&] { elsewhere = in_scope(kKey, draw); }).join();
      EXPECT_TRUE(elsewhere.equal(alone));
      EXPECT_TRUE(in_scope(kKey, draw).equal(alone));
    }
  }
}

TEST(RandomDraws, OfDifferentKeysDiffer) {
  for (const Draw& draw : everything()) {
    SCOPED_TRACE(draw.name);
    const std::vector<RandomDrawsKey> keys{
        {7, 1, 2, 3}, {8, 1, 2, 3}, {7, 2, 2, 3}, {7, 1, 3, 3}, {7, 1, 2, 4}, {1, 7, 2, 3}, {}};
    std::vector<Tensor> drawn;
    for (const RandomDrawsKey& key : keys) drawn.push_back(in_scope(key, draw));
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(drawn[i].equal(drawn[j])) << i << " and " << j;
    }
  }
}

// libtorch seeds with 32 bits, of which 100 000 keys would share some.
TEST(RandomDraws, OfManyKeysAllDiffer) {
  std::vector<std::pair<std::int64_t, std::int64_t>> firsts;
  for (std::uint64_t step = 0; step < 100'000; ++step) {
    const RandomDraws scope({.seed = 1, .step = step});
    const Tensor first = torch::empty({2}, torch::kInt64).random_();
    firsts.emplace_back(first.data_ptr<std::int64_t>()[0], first.data_ptr<std::int64_t>()[1]);
  }
  std::sort(firsts.begin(), firsts.end());
  EXPECT_EQ(std::adjacent_find(firsts.begin(), firsts.end()), firsts.end());
}

TEST(RandomDraws, GoOnWithinAScope) {
  for (const Draw& draw : everything()) {
    SCOPED_TRACE(draw.name);
    const RandomDraws scope(kKey);
    const Tensor first = draw.draw({});
    EXPECT_FALSE(draw.draw({}).equal(first));
  }
}

TEST(RandomDraws, LeaveTheDefaultGeneratorAlone) {
  for (const Draw& draw : everything()) {
    SCOPED_TRACE(draw.name);
    const Tensor before = at::detail::getDefaultCPUGenerator().get_state();
    in_scope(kKey, draw);
    EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(before));
  }
}

TEST(RandomDraws, HonourAGeneratorThatIsPassed) {
  for (const Draw& draw : operators()) {
    SCOPED_TRACE(draw.name);
    const Tensor expected = draw.draw(at::detail::createCPUGenerator(5));
    const RandomDraws scope(kKey);
    EXPECT_TRUE(draw.draw(at::detail::createCPUGenerator(5)).equal(expected));
    torch::manual_seed(5);
    EXPECT_TRUE(draw.draw(at::detail::getDefaultCPUGenerator()).equal(expected));
    EXPECT_TRUE(draw.draw({}).equal(in_scope(kKey, draw))) << "and have not moved on";
  }
}

TEST(RandomDraws, OutsideOfScopesAreLibtorchsOwn) {
  const auto draw_all = [] {
    std::vector<Tensor> drawn;
    torch::manual_seed(3);
    for (const Draw& draw : everything()) drawn.push_back(draw.draw({}));
    return drawn;
  };
  const std::vector<Tensor> before = draw_all();
  { const RandomDraws scope(kKey); }
  const std::vector<Tensor> after = draw_all();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i].equal(before[i])) << everything()[i].name;
}

// A scope elsewhere is nothing to this thread.
TEST(RandomDraws, AreOneThreadsOnly) {
  torch::manual_seed(3);
  const Tensor expected = torch::rand({100});
  const RandomDraws scope(kKey);
  std::thread([&] {
    torch::manual_seed(3);
    EXPECT_TRUE(torch::rand({100}).equal(expected));
  }).join();
}

TEST(RandomDraws, Nest) {
  const auto draw = [] { return torch::cat({torch::rand({3}), torch::randn({1}), torch::randn({1})}); };
  Tensor first;
  Tensor second;
  Tensor inner;
  {
    const RandomDraws scope(kKey);
    first = draw();
    second = draw();
  }
  {
    const RandomDraws scope({.seed = 8});
    inner = draw();
  }
  const RandomDraws scope(kKey);
  EXPECT_TRUE(draw().equal(first));
  {
    const RandomDraws between({.seed = 9});
    {
      const RandomDraws innermost({.seed = 8});
      EXPECT_TRUE(draw().equal(inner));
    }
    {
      const RandomDraws same(kKey);
      EXPECT_TRUE(draw().equal(first));
    }
  }
  EXPECT_TRUE(draw().equal(second)) << "the outer scope goes on where it stood";
}

TEST(RandomDraws, EndWithAnException) {
  const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THROW(
      {
        const RandomDraws scope(kKey);
        torch::rand({3});
        throw std::runtime_error("x");
      },
      std::runtime_error);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(state));
  torch::rand({3});
  EXPECT_FALSE(at::detail::getDefaultCPUGenerator().get_state().equal(state));
}

// libtorch draws normal numbers in pairs and keeps one for later.
TEST(RandomDraws, KeepNoHalfOfAPairForTheNextScope) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    const auto one = [&] { return torch::randn({1}, type); };
    Tensor expected;
    {
      const RandomDraws scope(kKey);
      expected = one();
    }
    const RandomDraws scope(kKey);
    EXPECT_TRUE(one().equal(expected));
  }
}

TEST(RandomDraws, GiveTheirGeneratorToCallers) {
  RandomDraws scope(kKey);
  const Tensor direct = torch::rand({10}, scope.generator());
  EXPECT_TRUE(direct.equal(in_scope(kKey, {"rand", [](const Gen&) { return torch::rand({10}); }})));
}

TEST(RandomDraws, HaveTheRightStatistics) {
  constexpr int kSteps = 200;
  constexpr int kValues = 5000;
  constexpr double kRate = 0.3;
  const auto mask = [](std::uint64_t step) {
    const RandomDraws scope({.seed = 11, .step = step});
    return torch::dropout(torch::ones({kValues}, torch::kFloat64), kRate, true) != 0;
  };
  double kept = 0;
  double alike = 0;
  Tensor previous = mask(0);
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const Tensor now = mask(step);
    kept += now.sum().item<double>();
    alike += (now == previous).sum().item<double>();
    previous = now;
  }
  constexpr double kCount = double{kSteps} * kValues;
  const auto expect_share = [&](double found, double share) {
    EXPECT_NEAR(found / kCount, share, 5 * std::sqrt(share * (1 - share) / kCount));
  };
  expect_share(kept, 1 - kRate);
  expect_share(alike, kRate * kRate + (1 - kRate) * (1 - kRate));  // steps have nothing to do with each other
  const RandomDraws scope(kKey);
  const Tensor normal = torch::randn({1'000'000}, torch::kFloat64);
  EXPECT_NEAR(normal.mean().item<double>(), 0, 5e-3);
  EXPECT_NEAR(normal.var().item<double>(), 1, 5 * std::sqrt(2e-6));
}

TEST(RandomDraws, GoThroughAutograd) {
  const Tensor x = torch::ones({1000}, torch::requires_grad());
  const RandomDraws scope(kKey);
  const Tensor y = torch::dropout(x, 0.5, true);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y)) << "the mask of the backward pass is that of the forward pass";
  const Tensor noise = torch::zeros({10}, torch::requires_grad()) * 1;
  EXPECT_TRUE(noise.normal_().requires_grad());
}

TEST(RandomDraws, CoverRecurrentAndAttentionLayers) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 5).num_layers(3).dropout(0.4));
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).num_layers(2).dropout(0.4));
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(6, 2).dropout(0.4));
  torch::nn::TransformerEncoderLayer encoder(torch::nn::TransformerEncoderLayerOptions(6, 2).dropout(0.4));
  const Tensor x = torch::rand({7, 3, 6});
  const std::vector<Draw> nets{
      {"LSTM", [&](const Gen&) { return std::get<0>(lstm(x)); }},
      {"GRU", [&](const Gen&) { return std::get<0>(gru(x)); }},
      {"MultiheadAttention", [&](const Gen&) { return std::get<0>(attention(x, x, x)); }},
      {"TransformerEncoderLayer", [&](const Gen&) { return encoder(x); }},
  };
  for (const Draw& net : nets) {
    SCOPED_TRACE(net.name);
    const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    const Tensor once = in_scope(kKey, net);
    EXPECT_TRUE(in_scope(kKey, net).equal(once));
    EXPECT_FALSE(in_scope({.seed = 8}, net).equal(once));
    EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(state));
    Tensor elsewhere;
    const Noise noise;
    std::thread([&] { elsewhere = in_scope(kKey, net); }).join();
    EXPECT_TRUE(elsewhere.equal(once));
  }
}

// Keeps no activations: the backward pass computes them again, with the same draws, and goes back through them.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static Tensor compute(const Tensor& x) {
    const RandomDraws scope(kKey);
    return torch::dropout(x * x, 0.5, true);
  }
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return compute(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode grad_mode(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    compute(x).backward(gradients[0]);
    return {x.grad()};
  }
};

TEST(RandomDraws, AreTheSameWhereABackwardPassComputesAgain) {
  const Tensor plain = torch::rand({1000}, torch::requires_grad());
  Checkpointed::compute(plain).sum().backward();
  const Tensor checkpointed = plain.detach().clone().requires_grad_();
  const RandomDraws outer({.seed = 1});
  Checkpointed::apply(checkpointed).sum().backward();
  EXPECT_TRUE(checkpointed.grad().equal(plain.grad()));
}

// Noise that is drawn in the backward pass.
struct NoisyGradient : torch::autograd::Function<NoisyGradient> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] + torch::randn_like(gradients[0])};
  }
};

TEST(RandomDraws, CoverTheBackwardPass) {
  const auto gradient = [] {
    const Tensor x = torch::ones({100}, torch::requires_grad());
    const RandomDraws scope(kKey);
    NoisyGradient::apply(x).sum().backward();
    return x.grad();
  };
  const Tensor once = gradient();
  const Noise noise;
  EXPECT_TRUE(gradient().equal(once));
  Tensor elsewhere;
  std::thread([&] { elsewhere = gradient(); }).join();
  EXPECT_TRUE(elsewhere.equal(once));
}

// A libtorch with operators that this one has not would show here.
TEST(RandomDraws, CoverEveryOperatorThatTakesAGenerator) {
  const RandomDraws scope(kKey);
  int covered = 0;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value() || name.name.rfind("aten::", 0) != 0) continue;
    const std::vector<c10::Argument>& arguments = handle->schema().arguments();
    const bool draws = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
      return argument.type()->str().find("Generator") != std::string::npos;
    });
    if (!draws || !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const std::string state = handle->dumpState();
    const std::size_t cpu = state.find("\nCPU: ");
    ASSERT_NE(cpu, std::string::npos);
    EXPECT_THAT(state.substr(cpu, state.find('\n', cpu + 1) - cpu), HasSubstr("src/nn/")) << name;
    ++covered;
  }
  EXPECT_EQ(covered, 28);
}

class Counting : public c10::WarningHandler {
 public:
  void process(const c10::SourceLocation&, const std::string&, bool) override { ++count; }
  int count = 0;
};

TEST(RandomDraws, BeginWithoutAWarning) {
  Counting handler;
  const c10::Warning::WarningHandlerGuard guard(&handler);
  { const RandomDraws scope(kKey); }
  EXPECT_EQ(handler.count, 0);
  TORCH_WARN("the handler is back");
  EXPECT_EQ(handler.count, 1);
}

}  // namespace
}  // namespace tutti::random_draws_test
