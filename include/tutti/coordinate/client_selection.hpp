// Which clients a round asks: a pure function of who there is, and of a seed.
//
//   const strategy::ClientSelection selection = strategy::Random{.fraction = 0.1};
//   const std::int64_t count = chosen_count(selection, count_clients(selection, clients));
//   const SelectionInputs inputs{.clients = clients, .seed = 7, .call = 12};
//   const std::vector<std::int64_t> asked = draw_clients(selection, count, inputs);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <tutti/coordinate/client_pool.hpp>
#include <tutti/strategy/federated.hpp>

namespace tutti {

struct SelectionInputs {
  std::span<const ClientInfo> clients = {};
  std::function<bool(std::int64_t)> is_free = {};  // all are, where empty
  std::uint64_t seed = 0;
  std::uint64_t call = 0;  // another number, other draws
};

// Whether somebody with these tags may be chosen.
bool has_tags(const strategy::ClientSelection& selection, std::span<const std::string> tags);

// How many there are, and how many of them may be chosen by their tags.
struct ClientCounts {
  std::int64_t all = 0;
  std::int64_t with_tags = 0;
};
ClientCounts count_clients(const strategy::ClientSelection& selection, std::span<const ClientInfo> clients);

// How many a round chooses where all are free: at least one. A UsageError where nobody has the tags that are required.
std::int64_t chosen_count(const strategy::ClientSelection& selection, const ClientCounts& clients);

// So many of those that are free and may be chosen, fewer where there are not so many; each as likely as the others, in
// ascending order. Of PowerOfChoice these are its candidates, likelier the more rows they have.
std::vector<std::int64_t> draw_clients(const strategy::ClientSelection& selection, std::int64_t count,
                                       const SelectionInputs& inputs);

// How many candidates there are for so many that are chosen.
std::int64_t candidate_count(const strategy::PowerOfChoice& selection, std::int64_t clients, std::int64_t chosen);
// So many of the candidates, those with the highest losses, in ascending order; of equal ones the first. One
// that is no number counts as the highest.
std::vector<std::int64_t> choose_by_loss(std::span<const std::int64_t> candidates, std::span<const double> losses,
                                         std::int64_t count);

}  // namespace tutti
