#include <tutti/base/reduce_op.hpp>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "Sum";
    case ReduceOp::mean: return "Mean";
    case ReduceOp::min: return "Min";
    case ReduceOp::max: break;
  }
  return "Max";
}

ReduceOp parse_reduce_op(std::string_view name) {
  for (ReduceOp op : kAllReduceOps)
    if (name == to_string(op)) return op;
  throw UsageError(fmt::format("'{}' is no reduction; allowed are Sum, Mean, Min and Max", name));
}

}  // namespace tutti
