// Looks at what a client has sent before anything is computed with it.
//
//   if (const auto why = why_refused(reply, {.expected = &model, .max_norm = 10})) report(*why);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/client_pool.hpp>

namespace tutti {

struct UpdateCheck {
  const ParameterSet* expected = nullptr;  // the layout of what was asked for
  double max_norm = 0;                     // of the change; any, where 0
  std::int64_t rows = 0;                   // that the client has, as far as is known; any, where 0
  std::vector<bool> is_trained = {};       // by array: whose changes count for the norm; all where empty
};

// A clause about the first thing that is wrong with it: names, shapes, types, numbers that are not finite, rows or a
// loss that cannot be, more rows than the client has, a change that is too long. Nothing where it is good. Numbers that
// are, to the bit, those that the client was given have changed by 0, whatever they are: a mask of -inf may be part of
// a model.
std::optional<std::string> why_refused(const ClientReply& reply, const UpdateCheck& check);

// The same of an evaluation: rows and a loss that can be.
std::optional<std::string> why_refused_evaluation(const ClientReply& reply);

// Whether an array has nothing infinite, and nothing that is no number.
bool has_finite_numbers(const NamedArray& array);
// The same, but for what it has from `before`, to the bit: an array of the same shape and type, where there is one.
bool stays_finite(const NamedArray& array, const NamedArray* before);
// Of all arrays, by name.
bool stays_finite(const ParameterSet& set, const ParameterSet& before);

// Whether a loss or an update has numbers that are not finite, and were not given so.
bool has_gone_astray(const ClientReply& reply);

// More than anybody has.
inline constexpr std::int64_t kMostClientRows = 1'000'000'000'000;

}  // namespace tutti
