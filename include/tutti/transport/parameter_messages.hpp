// Parameter sets and texts from one rank to another, as messages.
//
//   send_parameters(transport, Rank{1}, Tag{7}, set, Deadline::after(30s));
//   ParameterSet set = receive_parameters(transport, Rank{0}, Tag{7}, Deadline::after(30s));    // there
#pragma once

#include <string>
#include <string_view>

#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

// Its names, shapes and types first, then each array from where it lies.
void send_parameters(Transport& transport, Rank to, Tag tag, const ParameterSet& set, Deadline deadline);
ParameterSet receive_parameters(Transport& transport, Rank from, Tag tag, Deadline deadline);

void send_text(Transport& transport, Rank to, Tag tag, std::string_view text, Deadline deadline);
std::string receive_text(Transport& transport, Rank from, Tag tag, Deadline deadline);

}  // namespace tutti
