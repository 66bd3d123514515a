// `tutti bench all-reduce`: how long an all-reduce takes among ranks that are threads of this process, by number of
// ranks, size and algorithm; or what Auto would pick, and why.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <tutti/collective.hpp>

#include "cli/arguments.hpp"
#include "cli/bench_result.hpp"
#include "cli/measure.hpp"
#include "cli/memory.hpp"
#include "cli/test_values.hpp"
#include "cli/units.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

struct Request {
  std::vector<int> ranks;
  std::vector<Bytes> sizes;
  std::vector<AllReduceStrategy> algorithms;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  bool reproducible = false;
  bool messages_only = false;
  Effort effort;
  bool json = false;
  bool explain = false;
};

std::vector<AllReduceStrategy> parse_algorithms(std::string_view text, bool messages_only) {
  std::vector<AllReduceStrategy> algorithms;
  if (text == "all") {
    algorithms.emplace_back(Auto{});
    for (const AllReduceStrategy& strategy : own_all_reduce_strategies()) {
      const bool needs_shared_memory = std::holds_alternative<SharedSlices>(strategy);
      if (!std::holds_alternative<Auto>(strategy) && !(messages_only && needs_shared_memory))
        algorithms.push_back(strategy);
    }
    return algorithms;
  }
  for (const std::string& part : parse_list("--algorithm", text)) {
    try {
      algorithms.push_back(parse_all_reduce_strategy(part));
      validate(algorithms.back());
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--algorithm: {}", error.what()));
    }
    if (messages_only && std::holds_alternative<SharedSlices>(algorithms.back()))
      throw UsageError("--algorithm: SharedSlices needs shared memory, which --messages-only takes away");
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

// Before anything is allocated: the system hands out memory it does not have, and ends the process later.
void refuse_what_memory_cannot_hold(const Request& request) {
  const std::uint64_t available = available_memory();
  const auto ranks = static_cast<std::uint64_t>(*std::ranges::max_element(request.ranks));
  const Bytes largest = *std::ranges::max_element(request.sizes);
  // Each rank has its array and, where messages are exchanged, as much again for what comes in; in reproducible mode
  // that is everybody's array.
  const std::uint64_t arrays = ranks * (request.reproducible ? ranks + 1 : 2);
  if (largest.value > available / arrays)
    throw UsageError(fmt::format("--bytes: {} on {} ranks would need {} times as much memory, and {} MiB are left",
                                 to_string(largest), ranks, arrays, available >> 20));
}

// Nothing where help was asked for, and printed.
std::optional<Request> parse_request(Arguments arguments) {
  Request request;
  std::string ranks = "2,4";
  std::string sizes = "1KiB,64KiB,1MiB,4MiB,64MiB";
  std::string algorithms = "Auto";
  std::string type = "float32";
  std::string op{to_string(ReduceOp::sum)};
  CLI::App app("Times an all-reduce among ranks that are threads of this process.", "tutti bench all-reduce");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", ranks, "numbers of ranks, with commas between");
  app.add_option("--bytes", sizes, "sizes of each rank's array, with commas between");
  CLI::Option* named = app.add_option("--algorithm", algorithms, "algorithms (Ring,Tree:4), or all of them: all");
  app.add_option("--type", type, "type of the elements");
  app.add_option("--op", op, "Sum, Mean, Min or Max");
  app.add_flag("--reproducible", request.reproducible, "the same bits from every algorithm");
  app.add_flag("--messages-only", request.messages_only, "ranks exchange messages, as processes would");
  add_effort_options(app, request.effort);
  app.add_flag("--json", request.json, "print one JSON object a line");
  app.add_flag("--explain", request.explain, "tell what Auto picks and why, and measure nothing")->excludes(named);
  if (!parse_arguments(app, arguments)) return std::nullopt;

  request.ranks = parse_ranks("--ranks", ranks);
  request.sizes = parse_sizes("--bytes", sizes);
  request.algorithms = parse_algorithms(algorithms, request.messages_only);
  std::vector<std::string_view> type_names;
  for (const DataType known : kAllDataTypes) type_names.push_back(to_string(known));
  request.type = kAllDataTypes[parse_choice("--type", type, type_names)];
  std::vector<std::string_view> op_names;
  for (const ReduceOp known : kAllOps) op_names.push_back(to_string(known));
  request.op = kAllOps[parse_choice("--op", op, op_names)];
  if (request.op == ReduceOp::mean && !is_floating(request.type))
    throw UsageError(fmt::format("--op: the mean of {} is not a whole number", to_string(request.type)));
  refuse_broken_elements(request);
  if (!request.explain) refuse_what_memory_cannot_hold(request);
  return request;
}

RunRanksOptions run_options(const Request& request) { return {.shared_memory = !request.messages_only}; }

void explain(const Request& request) {
  for (const int ranks : request.ranks) {
    // How near the ranks are is the communicator's to say.
    WorldShape shape;
    run_ranks(
        ranks,
        [&](Communicator& world) {
          if (world.rank() == Rank{0}) shape = world.shape();
        },
        run_options(request));
    if (!request.json) fmt::print("{} {}:\n", ranks, ranks == 1 ? "rank" : "ranks");
    for (const Bytes& size : request.sizes) {
      const std::string why = explain_all_reduce(size, shape);
      if (request.json) {
        const nlohmann::ordered_json line{
            {"engine", "tutti"}, {"algorithm", "Auto"}, {"picked", to_string(choose_all_reduce(size, shape))},
            {"ranks", ranks},    {"bytes", size.value}, {"why", why}};
        fmt::print("{}\n", line.dump());
      } else {
        fmt::print("  {:>8}  {}\n", to_string(size), why);
      }
    }
  }
}

// Prints results as they come.
class Report {
 public:
  explicit Report(const Request& request) : json_(request.json) {
    if (json_) return;
    for (const AllReduceStrategy& algorithm : request.algorithms) {
      std::size_t width = to_string(algorithm).size();
      if (std::holds_alternative<Auto>(algorithm)) width += sizeof(" (RecursiveDoubling)") - 1;
      algorithm_width_ = std::max(algorithm_width_, width);
    }
    fmt::print("all-reduce of {}, {}{}{}, ranks are threads\n", to_string(request.type), to_string(request.op),
               request.reproducible ? ", reproducible" : "", request.messages_only ? ", messages only" : "");
    fmt::print("{:>5} {:>9}  {:<{}} {:>9} {:>9} {:>9}  {:>14} {:>8} {:>11}\n", "ranks", "bytes", "algorithm",
               algorithm_width_, "median", "p10", "p90", "algorithm GB/s", "bus GB/s", "repetitions");
  }

  void add(const BenchResult& result) {
    if (json_) {
      fmt::print("{}\n", to_json_line(result));
    } else {
      const std::string name =
          result.picked.empty() ? result.algorithm : fmt::format("{} ({})", result.algorithm, result.picked);
      fmt::print("{:>5} {:>9}  {:<{}} {:>9} {:>9} {:>9}  {:>14} {:>8} {:>11}\n", result.ranks, to_string(result.bytes),
                 name, algorithm_width_, format_seconds(result.timing.median), format_seconds(result.timing.p10),
                 format_seconds(result.timing.p90), format_figure(result.algorithm_bandwidth() / 1e9),
                 format_figure(result.bus_bandwidth() / 1e9), result.timing.repetitions);
    }
    std::fflush(stdout);
  }

 private:
  bool json_;
  std::size_t algorithm_width_ = 0;
};

// One rank's part in measuring all algorithms at one size.
class SizeBench {
 public:
  SizeBench(const Request& request, Communicator& world, Bytes size)
      : request_(request),
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
    for (const AllReduceStrategy& algorithm : request_.algorithms) {
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
      const AllReduceStrategy& algorithm = request_.algorithms[i];
      results.push_back({.engine = "tutti",
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
            .agree =
                [this](std::uint64_t of_rank_0) {
                  auto value = static_cast<std::int64_t>(of_rank_0);
                  broadcast(world_, std::span(&value, 1));
                  return static_cast<std::uint64_t>(value);
                },
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
  Communicator& world_;
  Bytes size_;
  PageMemory memory_;
  double scale_;
};

void measure(const Request& request) {
  Report report(request);
  for (const int ranks : request.ranks) {
    run_ranks(
        ranks,
        [&](Communicator& world) {
          for (const Bytes& size : request.sizes) {
            const std::vector<BenchResult> results = SizeBench(request, world, size).run();
            if (world.rank() != Rank{0}) continue;
            for (const BenchResult& result : results) report.add(result);
          }
        },
        run_options(request));
  }
}

}  // namespace

void run_bench_all_reduce(Arguments arguments) {
  const std::optional<Request> request = parse_request(arguments);
  if (!request) return;
  if (request->explain) {
    explain(*request);
  } else {
    measure(*request);
  }
}

}  // namespace tutti::cli
