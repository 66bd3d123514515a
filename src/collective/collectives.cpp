#include <tutti/collective/collectives.hpp>

#include <fmt/format.h>
#include <tutti/transport/engine_calls.hpp>

#include "engine.hpp"

namespace tutti {
namespace {

using detail::Call;

// The first thing wrong is the one to tell.
void refuse(Call& call, Misuse misuse, std::string why) {
  if (call.descriptor.misuse != Misuse::none) return;
  call.descriptor.misuse = misuse;
  call.misuse = std::move(why);
}

Call make_call(CallKind kind, ConstArray source, Array destination, const std::optional<Duration>& deadline) {
  Call call;
  call.descriptor.call = kind;
  call.descriptor.length = source.length();
  call.descriptor.type = source.type();
  call.source = source;
  call.destination = destination;
  call.deadline = deadline;
  return call;
}

void set_root(Call& call, Communicator& world, Rank root) {
  call.descriptor.root = root.value;
  if (root.value < 0 || root.value >= world.size()) {
    refuse(call, Misuse::root, fmt::format("the root is {}, and the ranks are 0 to {}", root.value, world.size() - 1));
  }
}

void set_op(Call& call, ReduceOp op, bool reproducible) {
  call.descriptor.op = op;
  call.descriptor.reproducible = reproducible ? 1 : 0;
  if (op == ReduceOp::mean && !is_floating(call.descriptor.type)) {
    refuse(call, Misuse::mean_of_integers,
           fmt::format("the mean of {} is not of that type; take the sum, or floating-point numbers",
                       to_string(call.descriptor.type)));
  }
}

void set_algorithm_of(Call& call, Communicator& world, const AllReduceStrategy& algorithm) {
  set_algorithm(call.descriptor, algorithm);
  try {
    validate(algorithm);
  } catch (const UsageError& error) {
    refuse(call, Misuse::arity, error.what());
  }
  if (std::holds_alternative<SharedSlices>(algorithm) && world.transport().shared_board() == nullptr) {
    refuse(call, Misuse::memory_not_shared, "SharedSlices needs ranks that share memory, and these exchange messages");
  }
  if (is_of_engine(algorithm) && world.transport().engine_calls() == nullptr) {
    refuse(call, Misuse::engine_not_there,
           fmt::format("{} needs ranks that are processes over it, and these are not", to_string(algorithm)));
  }
  const bool only_all_reduce = std::holds_alternative<RecursiveDoubling>(algorithm) ||
                               std::holds_alternative<HalvingDoubling>(algorithm) || is_of_engine(algorithm);
  if (only_all_reduce && call.descriptor.call != CallKind::all_reduce) {
    refuse(
        call, Misuse::algorithm_for_call,
        fmt::format("{} is for all_reduce; take Auto, Centralized, Tree, Ring or SharedSlices", to_string(algorithm)));
  }
}

// The array that a call fills, or that is cut up by it, must fit the other one.
void expect(Call& call, std::string_view name, std::size_t length, DataType type, std::size_t expected) {
  if (type != call.descriptor.type) {
    refuse(call, Misuse::type_of_result,
           fmt::format("`{}` is of type {}, and the other array of {}", name, to_string(type),
                       to_string(call.descriptor.type)));
  }
  if (length != expected) {
    refuse(call, Misuse::length_of_result, fmt::format("`{}` has length {} and must have {}", name, length, expected));
  }
}

Call all_reduce_call(Communicator& world, Array data, const AllReduceOptions& options) {
  Call call = make_call(CallKind::all_reduce, data, data, options.deadline);
  set_algorithm_of(call, world, options.algorithm);
  set_op(call, options.op, options.reproducible);
  if (is_of_engine(options.algorithm) && options.reproducible) {
    refuse(call, Misuse::engine_lacks_it,
           fmt::format("{} has no fixed order of sums, so no reproducible mode", to_string(options.algorithm)));
  }
  EngineCalls* engine = world.transport().engine_calls();
  if (is_of_engine(options.algorithm) && engine != nullptr && !engine->can_all_reduce(data.type())) {
    refuse(call, Misuse::engine_lacks_it,
           fmt::format("{} does not know {}", to_string(options.algorithm), to_string(data.type())));
  }
  return call;
}

Call reduce_call(Communicator& world, Array data, const ReduceOptions& options) {
  Call call = make_call(CallKind::reduce, data, data, options.deadline);
  set_root(call, world, options.root);
  set_algorithm_of(call, world, options.algorithm);
  set_op(call, options.op, options.reproducible);
  return call;
}

Call broadcast_call(Communicator& world, Array data, const BroadcastOptions& options) {
  Call call = make_call(CallKind::broadcast, data, data, options.deadline);
  call.descriptor.role = options.role;
  if (options.role == BroadcastRole::by_root) set_root(call, world, options.root);
  set_algorithm_of(call, world, options.algorithm);
  return call;
}

Call all_gather_call(Communicator& world, ConstArray mine, Array all, const CallOptions& options) {
  Call call = make_call(CallKind::all_gather, mine, all, options.deadline);
  expect(call, "all", all.length(), all.type(), mine.length() * static_cast<std::size_t>(world.size()));
  return call;
}

Call reduce_scatter_call(Communicator& world, ConstArray data, Array mine, const ReduceScatterOptions& options) {
  Call call = make_call(CallKind::reduce_scatter, data, mine, options.deadline);
  expect(call, "mine", mine.length(), mine.type(), chunk(data.length(), world.size(), world.rank().value).count);
  set_op(call, options.op, options.reproducible);
  return call;
}

Call gather_call(Communicator& world, ConstArray mine, Array all, const RootOptions& options) {
  Call call = make_call(CallKind::gather, mine, all, options.deadline);
  set_root(call, world, options.root);
  if (world.rank() == options.root) {
    expect(call, "all", all.length(), all.type(), mine.length() * static_cast<std::size_t>(world.size()));
  }
  return call;
}

Call scatter_call(Communicator& world, ConstArray all, Array mine, const RootOptions& options) {
  Call call = make_call(CallKind::scatter, all, mine, options.deadline);
  call.descriptor.length = mine.length();
  call.descriptor.type = mine.type();
  set_root(call, world, options.root);
  if (world.rank() == options.root) {
    expect(call, "all", all.length(), all.type(), mine.length() * static_cast<std::size_t>(world.size()));
  }
  return call;
}

Call all_to_all_call(Communicator& world, ConstArray parts, Array received, const CallOptions& options) {
  Call call = make_call(CallKind::all_to_all, parts, received, options.deadline);
  const auto size = static_cast<std::size_t>(world.size());
  call.descriptor.length = parts.length() / size;
  if (parts.length() % size != 0) {
    refuse(call, Misuse::length_of_result,
           fmt::format("`parts` has length {}, which is no multiple of the {} ranks", parts.length(), size));
  }
  expect(call, "received", received.length(), received.type(), parts.length());
  return call;
}

Call barrier_call(Communicator&, const CallOptions& options) {
  return make_call(CallKind::barrier, {}, {}, options.deadline);
}

void run(Communicator& world, Call call) { world.engine().run(call); }
Pending start(Communicator& world, Call call) { return Pending(world.engine().start(call)); }

}  // namespace

void all_reduce(Communicator& world, Array data, const AllReduceOptions& options) {
  run(world, all_reduce_call(world, data, options));
}
Pending start_all_reduce(Communicator& world, Array data, const AllReduceOptions& options) {
  return start(world, all_reduce_call(world, data, options));
}

void reduce(Communicator& world, Array data, const ReduceOptions& options) {
  run(world, reduce_call(world, data, options));
}
Pending start_reduce(Communicator& world, Array data, const ReduceOptions& options) {
  return start(world, reduce_call(world, data, options));
}

void broadcast(Communicator& world, Array data, const BroadcastOptions& options) {
  run(world, broadcast_call(world, data, options));
}
Pending start_broadcast(Communicator& world, Array data, const BroadcastOptions& options) {
  return start(world, broadcast_call(world, data, options));
}

void all_gather(Communicator& world, ConstArray mine, Array all, const CallOptions& options) {
  run(world, all_gather_call(world, mine, all, options));
}
Pending start_all_gather(Communicator& world, ConstArray mine, Array all, const CallOptions& options) {
  return start(world, all_gather_call(world, mine, all, options));
}

void reduce_scatter(Communicator& world, ConstArray data, Array mine, const ReduceScatterOptions& options) {
  run(world, reduce_scatter_call(world, data, mine, options));
}
Pending start_reduce_scatter(Communicator& world, ConstArray data, Array mine, const ReduceScatterOptions& options) {
  return start(world, reduce_scatter_call(world, data, mine, options));
}

void gather(Communicator& world, ConstArray mine, Array all, const RootOptions& options) {
  run(world, gather_call(world, mine, all, options));
}
Pending start_gather(Communicator& world, ConstArray mine, Array all, const RootOptions& options) {
  return start(world, gather_call(world, mine, all, options));
}

void scatter(Communicator& world, ConstArray all, Array mine, const RootOptions& options) {
  run(world, scatter_call(world, all, mine, options));
}
Pending start_scatter(Communicator& world, ConstArray all, Array mine, const RootOptions& options) {
  return start(world, scatter_call(world, all, mine, options));
}

void all_to_all(Communicator& world, ConstArray parts, Array received, const CallOptions& options) {
  run(world, all_to_all_call(world, parts, received, options));
}
Pending start_all_to_all(Communicator& world, ConstArray parts, Array received, const CallOptions& options) {
  return start(world, all_to_all_call(world, parts, received, options));
}

void barrier(Communicator& world, const CallOptions& options) { run(world, barrier_call(world, options)); }
Pending start_barrier(Communicator& world, const CallOptions& options) {
  return start(world, barrier_call(world, options));
}

}  // namespace tutti
