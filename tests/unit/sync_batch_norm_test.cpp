#include <tutti/nn/sync_batch_norm.hpp>

#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/run_ranks.hpp>

namespace tutti::sync_batch_norm_test {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
namespace F = torch::nn::functional;

// A batch norm's parameters and running statistics, each rank's own.
struct Norm {
  Tensor weight = {};
  Tensor bias = {};
  Tensor mean = {};
  Tensor variance = {};
  double momentum = 0.1;

  Tensor operator()(const Tensor& x, bool training = true) const {
    return torch::batch_norm(x, weight, bias, mean, variance, training, momentum, 1e-5, true);
  }
  Norm clone() const {
    const auto copy = [](const Tensor& t) {
      return t.defined() ? t.detach().clone().requires_grad_(t.requires_grad()) : Tensor();
    };
    return {copy(weight), copy(bias), copy(mean), copy(variance), momentum};
  }
};

enum class Order { contiguous, channels_last, strided };

struct Case {
  int ranks = 2;
  std::vector<std::int64_t> shape = {};  // of one row
  Order order = Order::contiguous;
  torch::ScalarType type = torch::kFloat64;
  bool affine = true;
  bool tracked = true;
  std::vector<std::int64_t> rows = {};  // of each rank

  std::string name() const {
    return fmt::format("{} ranks, rows {}, of shape {}, order {}, {}, affine {}, tracked {}", ranks,
                       fmt::join(rows, " "), fmt::join(shape, "x"), static_cast<int>(order), c10::toString(type),
                       affine, tracked);
  }
  double tolerance() const { return type == torch::kFloat64 ? 1e-9 : 1e-4; }
};

Tensor laid_out(const Tensor& x, Order order) {
  if (order == Order::strided) {  // every other value of a larger one
    Tensor larger = torch::zeros(x.sizes(), x.options()).repeat_interleave(2, -1);
    Tensor view = larger.slice(-1, 0, c10::nullopt, 2);
    view.copy_(x);
    return view;
  }
  if (order == Order::contiguous || x.dim() < 4) return x.contiguous();
  return x.contiguous(x.dim() == 4 ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::ChannelsLast3d);
}

void expect_close(const Tensor& found, const Tensor& expected, double tolerance, const char* what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  ASSERT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(torch::allclose(found, expected, tolerance, tolerance))
      << what << " off by " << (found - expected).abs().max().item<double>();
}

// Two steps on one rank with all rows, and on several with their parts.
void expect_as_one(const Case& test) {
  SCOPED_TRACE(test.name());
  torch::manual_seed(5);
  const std::int64_t channels = test.shape[0];
  const auto options = torch::TensorOptions(test.type);
  Norm start;
  if (test.affine) {
    start.weight = (torch::rand({channels}, options) + 0.5).requires_grad_();
    start.bias = torch::randn({channels}, options).requires_grad_();
  }
  if (test.tracked) {
    start.mean = torch::randn({channels}, options);
    start.variance = torch::rand({channels}, options) + 0.5;
  }
  start.momentum = 0.3;

  std::vector<std::int64_t> shape = test.shape;
  shape.insert(shape.begin(), std::accumulate(test.rows.begin(), test.rows.end(), std::int64_t{0}));
  std::vector<Tensor> inputs;
  std::vector<Tensor> factors;
  for (int step = 0; step < 2; ++step) {
    inputs.push_back(torch::randn(shape, options) * 2 + 5);  // a mean that is not 0
    factors.push_back(torch::randn(shape, options));
  }
  const auto slices = [&](const Tensor& whole) { return whole.split_with_sizes(test.rows); };

  struct Outcome {
    std::vector<Tensor> outputs = {};
    std::vector<Tensor> gradients = {};
    Norm norm = {};
  };
  const auto train = [&](const std::function<Tensor(const Tensor&)>& part) {
    Outcome outcome{.norm = start.clone()};
    for (std::size_t step = 0; step < inputs.size(); ++step) {
      const Tensor x = laid_out(part(inputs[step]), test.order).detach().requires_grad_();
      const Tensor y = outcome.norm(x);
      EXPECT_EQ(y.suggest_memory_format(), x.suggest_memory_format());
      (y * part(factors[step])).sum().backward();
      outcome.outputs.push_back(y.detach());
      outcome.gradients.push_back(x.grad());
    }
    return outcome;
  };

  const Outcome one = train([](const Tensor& whole) { return whole; });
  std::vector<Outcome> ranks(test.rows.size());
  run_ranks(test.ranks, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank().value);
    const SyncBatchNorm scope(world);
    ranks[rank] = train([&](const Tensor& whole) { return slices(whole)[rank]; });
  });

  for (std::size_t step = 0; step < inputs.size(); ++step) {
    std::vector<Tensor> outputs;
    std::vector<Tensor> gradients;
    for (const Outcome& rank : ranks) {
      outputs.push_back(rank.outputs[step]);
      gradients.push_back(rank.gradients[step]);
    }
    expect_close(torch::cat(outputs), one.outputs[step], test.tolerance(), "the output");
    expect_close(torch::cat(gradients), one.gradients[step], test.tolerance(), "the gradient of the input");
  }
  if (test.affine) {
    Tensor weight = torch::zeros({channels}, options);
    Tensor bias = torch::zeros({channels}, options);
    for (const Outcome& rank : ranks) {
      weight += rank.norm.weight.grad();
      bias += rank.norm.bias.grad();
    }
    expect_close(weight, one.norm.weight.grad(), 10 * test.tolerance(), "the gradient of the weight");
    expect_close(bias, one.norm.bias.grad(), 10 * test.tolerance(), "the gradient of the bias");
  }
  if (test.tracked) {
    for (const Outcome& rank : ranks) {
      expect_close(rank.norm.mean, one.norm.mean, test.tolerance(), "the running mean");
      expect_close(rank.norm.variance, one.norm.variance, test.tolerance(), "the running variance");
      EXPECT_TRUE(rank.norm.mean.equal(ranks[0].norm.mean)) << "to the bit";
      EXPECT_TRUE(rank.norm.variance.equal(ranks[0].norm.variance)) << "to the bit";
    }
  }
}

TEST(SyncBatchNorm, OverUnevenRanksIsThatOfOneBatch) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
             {1}, {7}, {4, 1}, {3, 6}, {4, 3, 5}, {1, 3, 3}, {3, 1, 1}, {2, 3, 2, 4}}) {
      for (const Order order : {Order::contiguous, Order::channels_last, Order::strided}) {
        for (const torch::ScalarType type : {torch::kFloat32, torch::kFloat64}) {
          Case test{.ranks = ranks, .shape = shape, .order = order, .type = type};
          for (int rank = 0; rank < ranks; ++rank) test.rows.push_back(3 + (rank * 5) % 4);
          expect_as_one(test);
        }
      }
    }
  }
}

TEST(SyncBatchNorm, DoesWithoutParametersOrRunningStatistics) {
  for (const bool affine : {false, true}) {
    for (const bool tracked : {false, true}) {
      expect_as_one({.ranks = 3, .shape = {4, 3}, .affine = affine, .tracked = tracked, .rows = {2, 5, 3}});
    }
  }
}

TEST(SyncBatchNorm, TakesRanksOfOneRowOrNone) {
  for (const std::vector<std::int64_t>& rows :
       std::vector<std::vector<std::int64_t>>{{1, 1}, {0, 2}, {4, 0}, {1, 0, 3}, {0, 0, 2, 0, 1}, {0, 0, 5}}) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{3}, {2, 4}, {3, 2, 2}}) {
      expect_as_one({.ranks = static_cast<int>(rows.size()), .shape = shape, .rows = rows});
    }
  }
}

TEST(SyncBatchNorm, WorksThroughMessagesToo) {
  const Tensor all = torch::randn({10, 4}, torch::kFloat64);
  const Tensor expected = Norm{}(all);
  run_ranks(2,
            [&](Communicator& world) {
              const SyncBatchNorm scope(world);
              const int first = world.rank().value * 3;
              const Tensor mine = all.slice(0, first, world.rank().value == 0 ? 3 : 10);
              EXPECT_TRUE(torch::allclose(Norm{}(mine), expected.slice(0, first, first + mine.size(0)), 1e-9, 1e-9));
            },
            {.shared_memory = false});
}

// float32 rows far from 0: a variance as mean(x^2) - mean(x)^2 would be nothing but noise.
TEST(SyncBatchNorm, KeepsTheVarianceOfValuesFarFromZero) {
  const Tensor all = torch::randn({400, 2}) + 10'000;
  const Tensor exact = Norm{}(all.to(torch::kFloat64));
  run_ranks(2, [&](Communicator& world) {
    const SyncBatchNorm scope(world);
    const auto part = [&](const Tensor& t) { return t.chunk(2)[static_cast<std::size_t>(world.rank().value)]; };
    EXPECT_TRUE(torch::allclose(Norm{}(part(all)).to(torch::kFloat64), part(exact), 1e-2, 1e-2));
  });
}

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d first{register_module("first", torch::nn::Conv2d(2, 3, 3))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(3))};
  torch::nn::Conv2d second{register_module("second", torch::nn::Conv2d(3, 4, 3))};
  torch::nn::BatchNorm1d last{
      register_module("last", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(c10::nullopt)))};

  Tensor forward(const Tensor& x) { return last(second(torch::relu(norm(first(x)))).flatten(2)); }
};
TORCH_MODULE(Net);

TEST(SyncBatchNorm, MakesANetOfManyRanksTheNetOfOne) {
  torch::manual_seed(2);
  Net one;
  one->to(torch::kFloat64);
  const Tensor x = torch::randn({9, 2, 6, 6}, torch::kFloat64);
  const auto target = torch::randn({9, 4, 4}, torch::kFloat64);
  const std::vector<std::int64_t> rows{4, 2, 3};
  std::vector<Net> nets;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    Net net;
    net->to(torch::kFloat64);
    const torch::NoGradGuard guard;
    for (const auto& item : one->named_parameters()) net->named_parameters()[item.key()].copy_(item.value());
    nets.push_back(net);
  }
  for (int step = 0; step < 3; ++step) (one->forward(x) - target).pow(2).sum().backward();
  run_ranks(3, [&](Communicator& world) {
    const SyncBatchNorm scope(world);
    const auto rank = static_cast<std::size_t>(world.rank().value);
    for (int step = 0; step < 3; ++step) {
      (nets[rank]->forward(x.split_with_sizes(rows)[rank]) - target.split_with_sizes(rows)[rank])
          .pow(2)
          .sum()
          .backward();
    }
  });
  for (const auto& item : one->named_parameters()) {
    Tensor sum = torch::zeros_like(item.value());
    for (Net& net : nets) sum += net->named_parameters()[item.key()].grad();
    EXPECT_TRUE(torch::allclose(sum, item.value().grad(), 1e-9, 1e-9)) << item.key();
  }
  for (const auto& item : one->named_buffers()) {
    for (Net& net : nets) {
      EXPECT_TRUE(torch::allclose(net->named_buffers()[item.key()], item.value(), 1e-9, 1e-9)) << item.key();
    }
  }
  one->eval();
  nets[1]->eval();
  EXPECT_TRUE(torch::allclose(nets[1]->forward(x), one->forward(x), 1e-9, 1e-9));
}

// Rank 1 does nothing: whoever waited for it would be told, and fail.
TEST(SyncBatchNorm, LeavesEvaluationAlone) {
  run_ranks(2, [](Communicator& world) {
    if (world.rank() == Rank{1}) return;
    const Norm norm{.mean = torch::rand({3}), .variance = torch::rand({3}) + 1};
    const Tensor x = torch::randn({4, 3}, torch::requires_grad());
    const Tensor expected = norm(x, false);
    const SyncBatchNorm scope(world);
    const Tensor y = norm(x, false);
    EXPECT_TRUE(y.equal(expected));
    y.sum().backward();
  });
}

TEST(SyncBatchNorm, LeavesInstanceAndOtherNormsAlone) {
  run_ranks(2, [](Communicator& world) {
    if (world.rank() == Rank{1}) return;
    const Tensor x = torch::randn({4, 6, 5}, torch::requires_grad());
    torch::nn::InstanceNorm1d instance(torch::nn::InstanceNorm1dOptions(6).affine(true));
    const auto compute = [&] {
      x.mutable_grad() = Tensor();
      const Tensor y = torch::cat(
          {instance(x), F::group_norm(x, F::GroupNormFuncOptions(2)), F::layer_norm(x, F::LayerNormFuncOptions({5}))});
      (y * y * y).sum().backward();
      return torch::cat({y.detach(), x.grad()});
    };
    const Tensor expected = compute();
    const SyncBatchNorm scope(world);
    EXPECT_TRUE(compute().equal(expected));
    const torch::NoGradGuard no_grad;
    const c10::InferenceMode inference;
    instance(torch::randn({4, 6, 5}));
  });
}

TEST(SyncBatchNorm, WorksWithoutAutograd) {
  const Tensor all = torch::randn({6, 3}, torch::kFloat64);
  const Tensor expected = Norm{}(all);
  const std::vector<std::int64_t> rows{0, 2, 4};
  run_ranks(3, [&](Communicator& world) {
    const SyncBatchNorm scope(world);
    const auto rank = static_cast<std::size_t>(world.rank().value);
    const auto compute = [&] { return Norm{}(all.split_with_sizes(rows)[rank].clone()); };
    {
      const torch::NoGradGuard guard;
      EXPECT_TRUE(torch::allclose(compute(), expected.split_with_sizes(rows)[rank], 1e-9, 1e-9));
    }
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::allclose(compute(), expected.split_with_sizes(rows)[rank], 1e-9, 1e-9));
  });
}

TEST(SyncBatchNorm, IsOneThreadsOnly) {
  run_ranks(2, [](Communicator& world) {
    const Tensor x = torch::randn({4, 3});
    const Tensor expected = Norm{}(x);
    const SyncBatchNorm scope(world);
    std::thread([&] { EXPECT_TRUE(Norm{}(x).equal(expected)); }).join();
  });
}

TEST(SyncBatchNorm, EndsWithItsScope) {
  run_ranks(2, [](Communicator& world) {
    const Tensor x = torch::randn({4, 3}, torch::requires_grad());
    const Tensor expected = Norm{}(x);
    { const SyncBatchNorm scope(world); }
    const Tensor y = Norm{}(x);
    EXPECT_TRUE(y.equal(expected));
    // What was computed outside goes back as ever, wherever it does.
    (expected * expected * expected).sum().backward();
    const Tensor gradient = x.grad().clone();
    x.mutable_grad() = Tensor();
    if (world.rank() == Rank{1}) return;
    const SyncBatchNorm scope(world);
    (y * y * y).sum().backward();
    EXPECT_TRUE(x.grad().equal(gradient));
  });
}

TEST(SyncBatchNorm, NestsByTheInnermostWorld) {
  run_ranks(4, [](Communicator& world) {
    Communicator half = world.split({.color = world.rank().value / 2});
    const Tensor x = torch::full({1, 1}, static_cast<double>(world.rank().value), torch::kFloat64);
    const auto mean = [&] {
      const Norm norm{
          .mean = torch::zeros({1}, torch::kFloat64), .variance = torch::zeros({1}, torch::kFloat64), .momentum = 1};
      norm(x);
      return norm.mean.item<double>();
    };
    const SyncBatchNorm outer(world);
    EXPECT_EQ(mean(), 1.5);
    {
      const SyncBatchNorm inner(half);
      EXPECT_EQ(mean(), world.rank().value < 2 ? 0.5 : 2.5);
    }
    EXPECT_EQ(mean(), 1.5);
  });
}

template <typename F>
std::string usage_error_of(F f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(SyncBatchNorm, RefusesABackwardPassOutsideOfItsScope) {
  run_ranks(2, [](Communicator& world) {
    Communicator same = world.split({});
    const Tensor x = torch::randn({4, 3}, torch::requires_grad());
    Tensor y;
    {
      const SyncBatchNorm scope(world);
      y = Norm{}(x).sum();
    }
    EXPECT_THAT(usage_error_of([&] { y.backward({}, true); }), HasSubstr("belongs into the scope"));
    {
      const SyncBatchNorm scope(same);
      EXPECT_THAT(usage_error_of([&] { y.backward({}, true); }), HasSubstr("the same world"));
    }
    const SyncBatchNorm scope(world);
    y.backward();
  });
}

TEST(SyncBatchNorm, RefusesSecondDerivatives) {
  run_ranks(2, [](Communicator& world) {
    const SyncBatchNorm scope(world);
    const Tensor x = torch::randn({4, 3}, torch::requires_grad());
    const Tensor y = Norm{}(x).pow(3).sum();
    EXPECT_THAT(usage_error_of([&] { torch::autograd::grad({y}, {x}, {}, c10::nullopt, true); }),
                HasSubstr("create_graph"));
  });
}

TEST(SyncBatchNorm, RefusesOneValueForEachChannel) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](Communicator& world) {
      const SyncBatchNorm scope(world);
      const Norm norm{.mean = torch::zeros({2}), .variance = torch::zeros({2})};
      const Tensor x = torch::ones({world.rank() == Rank{0} ? 1 : 0, 2});
      EXPECT_THAT(usage_error_of([&] { norm(x); }),
                  HasSubstr(fmt::format("more than one value for each channel, found one over {} ranks", ranks)));
      EXPECT_TRUE(norm.variance.equal(torch::zeros({2})));
      EXPECT_EQ(Norm{}(torch::rand({2, 2})).size(0), 2) << "the world goes on";
    });
  }
}

TEST(SyncBatchNorm, TakesNoRowsAtAll) {
  run_ranks(2, [](Communicator& world) {
    const SyncBatchNorm scope(world);
    const Norm norm{
        .weight = torch::ones({2}, torch::requires_grad()), .mean = torch::zeros({2}), .variance = torch::ones({2})};
    const Tensor x = torch::ones({0, 2}, torch::requires_grad());
    norm(x).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_TRUE(norm.weight.grad().equal(torch::zeros({2})));
    EXPECT_TRUE(norm.mean.equal(torch::zeros({2})));
    EXPECT_TRUE(norm.variance.equal(torch::ones({2})));
  });
}

TEST(SyncBatchNorm, RefusesOtherTypes) {
  run_ranks(2, [](Communicator& world) {
    const SyncBatchNorm scope(world);
    EXPECT_THAT(usage_error_of([] {
                  Norm{}(torch::ones({4, 2}, torch::kBFloat16));
                }),
                HasSubstr("float32 and float64, found BFloat16"));
    EXPECT_THAT(usage_error_of([] {
                  Norm{.weight = torch::ones({2}, torch::kFloat64)}(torch::ones({4, 2}, torch::kFloat32));
                }),
                HasSubstr("parameters of its input's type, Float, found Double"));
  });
}

class Counting : public c10::WarningHandler {
 public:
  void process(const c10::SourceLocation&, const std::string&, bool) override { ++count; }
  int count = 0;
};

TEST(SyncBatchNorm, BeginsWithoutAWarning) {
  run_ranks(1, [](Communicator& world) {
    Counting handler;
    const c10::Warning::WarningHandlerGuard guard(&handler);
    { const SyncBatchNorm scope(world); }
    EXPECT_EQ(handler.count, 0);
  });
}

TEST(SyncBatchNorm, SaysWhoBringsOtherChannels) {
  run_ranks(2, [](Communicator& world) {
    const SyncBatchNorm scope(world);
    EXPECT_THROW(Norm{}(torch::rand({4, 2 + world.rank().value})), PeerError);
    Norm{}(torch::rand({4, 2}));
  });
}

}  // namespace
}  // namespace tutti::sync_batch_norm_test
