#include "autocast.hpp"

#include <ATen/autocast_mode.h>

namespace tutti::detail {

Autocast::Autocast(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  was_enabled_ = at::autocast::is_cpu_enabled();
  type_before_ = at::autocast::get_autocast_cpu_dtype();
  at::autocast::set_cpu_enabled(true);
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!enabled_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_cpu_enabled(was_enabled_);
  at::autocast::set_autocast_cpu_dtype(type_before_);
}

}  // namespace tutti::detail
