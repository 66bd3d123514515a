// `tutti bench all-reduce`: how long an all-reduce takes among ranks, by their number, size and algorithm; or what Auto
// would pick, and why. Ranks are threads of this process, or the processes that a launcher started.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/collective.hpp>
#include <tutti/transport/engine_calls.hpp>

#include "cli/arguments.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_request.hpp"
#include "cli/bench_result.hpp"
#include "cli/command_line.hpp"
#include "cli/measure.hpp"
#include "cli/ranks.hpp"
#include "cli/test_values.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

struct Request : BenchRequest {
  std::vector<AllReduceStrategy> algorithms = {};  // none: all that the ranks can run
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  bool reproducible = false;
  bool explain = false;
};

std::vector<AllReduceStrategy> parse_algorithms(std::string_view text) {
  std::vector<AllReduceStrategy> algorithms;
  if (text == "all") return algorithms;
  for (const std::string& part : parse_list("--algorithm", text)) {
    try {
      algorithms.push_back(parse_all_reduce_strategy(part));
      validate(algorithms.back());
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--algorithm: {}", error.what()));
    }
  }
  return algorithms;
}

void refuse_broken_elements(const Request& request) {
  for (const Bytes& size : request.sizes) {
    if (size.value % size_of(request.type) != 0)
      throw UsageError(fmt::format("--bytes: {} bytes is no whole number of {} elements, which take {} bytes each",
                                   size.value, to_string(request.type), size_of(request.type)));
  }
}

// Each rank has its array and, where messages are exchanged, as much again for what comes in; in reproducible mode that
// is everybody's array.
std::uint64_t arrays_of_rank(const Request& request, int ranks) {
  return request.reproducible ? static_cast<std::uint64_t>(ranks) + 1 : 2;
}

// Nothing where help was asked for, and printed.
std::optional<Request> parse_request(Arguments arguments) {
  std::string algorithms = "Auto";
  std::string type = "float32";
  std::string op{to_string(ReduceOp::sum)};
  bool reproducible = false;
  bool explain = false;
  CommandLine line("Times an all-reduce among ranks: threads of this process, or processes that a launcher started.",
                   "tutti bench all-reduce");
  const BenchOptions options(line);
  const CommandOption named = line.option("--algorithm", algorithms, "algorithms (Ring,Tree:4), or all of them: all");
  line.option("--type", type, "type of the elements");
  line.option("--op", op, "Sum, Mean, Min or Max");
  line.flag("--reproducible", reproducible, "the same bits from every algorithm");
  line.flag("--explain", explain, "tell what Auto picks and why, and measure nothing").excludes(named);
  if (!line.parse(arguments)) return std::nullopt;

  Request request{options.read()};
  request.algorithms = parse_algorithms(algorithms);
  request.reproducible = reproducible;
  request.explain = explain;
  std::vector<std::string_view> type_names;
  for (const DataType known : kAllDataTypes) type_names.push_back(to_string(known));
  request.type = kAllDataTypes[parse_choice("--type", type, type_names)];
  std::vector<std::string_view> op_names;
  for (const ReduceOp known : kAllOps) op_names.push_back(to_string(known));
  request.op = kAllOps[parse_choice("--op", op, op_names)];
  if (request.op == ReduceOp::mean && !is_floating(request.type))
    throw UsageError(fmt::format("--op: the mean of {} is not a whole number", to_string(request.type)));
  refuse_broken_elements(request);
  return request;
}

// Those that were named, or all that these ranks can run.
std::vector<AllReduceStrategy> algorithms_for(const Request& request, Communicator& world) {
  const bool has_board = world.transport().shared_board() != nullptr;
  const EngineCalls* engine = world.transport().engine_calls();
  if (request.algorithms.empty()) {
    std::vector<AllReduceStrategy> algorithms{Auto{}};
    for (const AllReduceStrategy& strategy : own_all_reduce_strategies()) {
      if (std::holds_alternative<Auto>(strategy)) continue;
      if (has_board || !std::holds_alternative<SharedSlices>(strategy)) algorithms.push_back(strategy);
    }
    if (engine != nullptr && engine->can_all_reduce(request.type) && !request.reproducible)
      algorithms.emplace_back(Gloo{});
    return algorithms;
  }
  for (const AllReduceStrategy& strategy : request.algorithms) {
    if (!has_board && std::holds_alternative<SharedSlices>(strategy))
      throw UsageError("--algorithm: SharedSlices needs shared memory, and these ranks exchange messages");
    if (engine == nullptr && is_of_engine(strategy))
      throw UsageError(fmt::format("--algorithm: {} needs several processes over it, and these ranks are {}",
                                   to_string(strategy), describe_ranks(world)));
  }
  return request.algorithms;
}

void explain(const Request& request, Communicator& world) {
  // How near the ranks are is the communicator's to say.
  const WorldShape shape = world.shape();
  if (!request.json) fmt::print("{} {}:\n", shape.ranks, shape.ranks == 1 ? "rank" : "ranks");
  for (const Bytes& size : request.sizes) {
    const std::string why = explain_all_reduce(size, shape);
    if (request.json) {
      const nlohmann::ordered_json line{
          {"engine", engine_of(world)}, {"algorithm", "Auto"}, {"picked", to_string(choose_all_reduce(size, shape))},
          {"ranks", shape.ranks},       {"bytes", size.value}, {"why", why}};
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("  {:>8}  {}\n", to_string(size), why);
    }
  }
}

BenchTable table(const Request& request, const std::vector<AllReduceStrategy>& algorithms, Communicator& world) {
  std::size_t width = sizeof("algorithm") - 1;
  for (const AllReduceStrategy& algorithm : algorithms) {
    std::size_t wanted = to_string(algorithm).size();
    if (std::holds_alternative<Auto>(algorithm)) wanted += sizeof(" (RecursiveDoubling)") - 1;
    width = std::max(width, wanted);
  }
  return {
      .headline = fmt::format("all-reduce of {}, {}{}, ranks are {}", to_string(request.type), to_string(request.op),
                              request.reproducible ? ", reproducible" : "", describe_ranks(world)),
      .algorithm_width = width};
}

// One rank's part in measuring all algorithms at one size.
class SizeBench {
 public:
  SizeBench(const Request& request, const std::vector<AllReduceStrategy>& algorithms, Communicator& world, Bytes size)
      : request_(request),
        algorithms_(algorithms),
        world_(world),
        size_(size),
        memory_(size.value),
        scale_(first_scale(request.type, request.op)) {}

  // On rank 0, one result per algorithm.
  std::vector<BenchResult> run() {
    struct Entry {
      CallTimer timer;
      Plan plan;
      std::vector<double> seconds;
    };
    std::vector<Entry> entries;
    for (const AllReduceStrategy& algorithm : algorithms_) {
      verify(algorithm);
      CallTimer timer(calls(algorithm));
      const Plan plan = timer.plan(size_.value, request_.effort);
      entries.push_back({std::move(timer), plan, {}});
    }
    // In turns, so that what disturbs the machine for a moment disturbs all algorithms alike.
    constexpr std::uint64_t kTurns = 3;
    for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
      for (Entry& entry : entries) {
        const std::uint64_t all = entry.plan.repetitions;
        const std::uint64_t here = all * (turn + 1) / kTurns - all * turn / kTurns;
        if (here == 0) continue;
        std::ranges::copy(entry.timer.take({here, entry.plan.batch}), std::back_inserter(entry.seconds));
      }
    }
    std::vector<BenchResult> results;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const AllReduceStrategy& algorithm = algorithms_[i];
      results.push_back({.engine = std::string(engine_of(world_)),
                         .algorithm = to_string(algorithm),
                         .picked = picked(algorithm),
                         .ranks = world_.size(),
                         .bytes = size_,
                         .timing = summarize(entries[i].seconds, entries[i].plan)});
    }
    return results;
  }

 private:
  std::string picked(const AllReduceStrategy& algorithm) const {
    if (!std::holds_alternative<Auto>(algorithm)) return {};
    return to_string(choose_all_reduce(size_, world_.shape()));
  }

  void refill() {
    dispatch(request_.type,
             [&]<typename T>(std::type_identity<T>) { fill(memory_.as<T>(), world_.rank().value, scale_); });
  }

  void call(const AllReduceOptions& options) {
    all_reduce(world_, Array(memory_.as<float>().data(), size_.value / size_of(request_.type), request_.type), options);
  }

  AllReduceOptions options(const AllReduceStrategy& algorithm) const {
    return {.algorithm = algorithm, .op = request_.op, .reproducible = request_.reproducible};
  }

  RankCalls calls(const AllReduceStrategy& algorithm) {
    return {.call = [this, options = options(algorithm)] { call(options); },
            .refill = [this] { refill(); },
            .agree = [this](std::uint64_t of_rank_0) { return agree(world_, of_rank_0); },
            .calls_per_filling = calls_per_filling(request_.type, request_.op, world_.size())};
  }

  void verify(const AllReduceStrategy& algorithm) {
    refill();
    call(options(algorithm));
    dispatch(request_.type, [&]<typename T>(std::type_identity<T>) {
      const std::span<const T> array = memory_.as<T>();
      if (const auto wrong = first_wrong(array, request_.op, world_.size(), scale_))
        throw Error(fmt::format("{} of {} on {} ranks went wrong: on {}, element {} is {} and should be {}",
                                to_string(algorithm), to_string(size_), world_.size(), to_string(world_.rank()),
                                wrong->index, wrong->found, wrong->expected));
    });
  }

  const Request& request_;
  const std::vector<AllReduceStrategy>& algorithms_;
  Communicator& world_;
  Bytes size_;
  PageMemory memory_;
  double scale_;
};

void measure(const Request& request, Communicator& world, BenchReport& report) {
  const std::vector<AllReduceStrategy> algorithms = algorithms_for(request, world);
  refuse_what_memory_cannot_hold(
      request, [&](int ranks) { return arrays_of_rank(request, ranks); }, world);
  const bool tells = world.rank() == Rank{0};
  if (tells) report.begin(table(request, algorithms, world));
  for (const Bytes& size : request.sizes) {
    const std::vector<BenchResult> results = SizeBench(request, algorithms, world, size).run();
    if (!tells) continue;
    for (const BenchResult& result : results) report.add(result);
  }
}

void run(Arguments arguments) {
  const std::optional<Request> request = parse_request(arguments);
  if (!request) return;
  if (request->explain) {
    request->run([&](Communicator& world) {
      if (world.rank() == Rank{0}) explain(*request, world);
    });
    return;
  }
  refuse_what_memory_cannot_hold(*request, [&](int ranks) { return arrays_of_rank(*request, ranks); });
  BenchReport report(request->json);
  request->run([&](Communicator& world) { measure(*request, world, report); });
}

}  // namespace

void run_bench_all_reduce(Arguments arguments) {
  tell_misuse_once([&] { run(arguments); });
}

}  // namespace tutti::cli
