// Events as JSON, for programs that read what a run tells: the name of the event, and what it holds under the same
// names.
//
//   event_json(event::Warned{"the loss is not finite"});   // {"event":"warned","sentence":"the loss is not finite"}
#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <tutti/base/events.hpp>

namespace tutti::detail {

nlohmann::ordered_json event_json(const Event& event);

const char* name_of(event::SpanEnded::Kind kind);

// On one line; numbers that are not finite become null, and bytes that are no UTF-8 the sign for that.
std::string json_line(const nlohmann::ordered_json& json);

// A value's JSON as people would write it: "adam" without quotes, numbers with four digits, whole ones with all of
// theirs. A text that is no JSON stands for itself.
std::string value_text(const std::string& json);

}  // namespace tutti::detail
