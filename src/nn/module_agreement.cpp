#include "module_agreement.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/serialize/archive.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>

namespace tutti::detail {
namespace {

// Everybody gets the root's bytes, which are as many on all.
void broadcast_bytes(Communicator& world, std::span<std::byte> bytes, Rank root) {
  std::vector<std::int32_t> words((bytes.size() + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
  if (world.rank() == root) std::memcpy(words.data(), bytes.data(), bytes.size());
  broadcast(world, words, {.root = root});
  std::memcpy(bytes.data(), words.data(), bytes.size());
}

struct Entry {
  std::string name;
  std::string what;  // "float32 [256, 784]"
};

std::vector<Entry> entries_of(const torch::nn::Module& module, const std::vector<AgreedOption>& options) {
  std::vector<Entry> entries;
  for (const AgreedOption& option : options)
    entries.push_back({fmt::format("the option '{}'", option.name), option.value});
  const auto add = [&](const char* kind, const auto& items, bool is_parameter) {
    for (const auto& item : items) {
      std::ostringstream text;
      text << c10::toString(item.value().scalar_type()) << ' ' << item.value().sizes();
      if (is_parameter && !item.value().requires_grad()) text << ", frozen,";
      entries.push_back({fmt::format("{} '{}'", kind, item.key()), text.str()});
    }
  };
  add("the parameter", module.named_parameters(), true);
  add("the buffer", module.named_buffers(), false);
  return entries;
}

// Where this rank's module is another than rank 0's; empty where it is not.
std::string first_difference(const std::vector<Entry>& first, const std::vector<Entry>& mine, Rank rank) {
  for (std::size_t i = 0; i < std::max(first.size(), mine.size()); ++i) {
    if (i >= mine.size()) return fmt::format("{} of rank 0 is missing on {}", first[i].name, to_string(rank));
    if (i >= first.size()) return fmt::format("{} of {} is missing on rank 0", mine[i].name, to_string(rank));
    if (first[i].name != mine[i].name)
      return fmt::format("rank 0 has {} where {} has {}", first[i].name, to_string(rank), mine[i].name);
    if (first[i].what != mine[i].what) {
      return fmt::format("{} is {} on rank 0 and {} on {}", first[i].name, first[i].what, mine[i].what,
                         to_string(rank));
    }
  }
  return {};
}

// A text of any length, of every rank.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(world.size()));
  const auto length = static_cast<std::int64_t>(mine.size());
  all_gather(world, ConstArray(&length, 1, DataType::int64), lengths);
  const auto words = static_cast<std::size_t>(std::ranges::max(lengths)) / sizeof(std::int32_t) + 1;
  std::vector<std::int32_t> padded(words);
  std::memcpy(padded.data(), mine.data(), mine.size());
  std::vector<std::int32_t> all(words * lengths.size());
  all_gather(world, padded, all);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * words), static_cast<std::size_t>(lengths[r]));
  }
  return texts;
}

}  // namespace

void broadcast_tensor(Communicator& world, const torch::Tensor& tensor, Rank root) {
  const torch::Tensor dense = tensor.detach().contiguous();
  broadcast_bytes(world, {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()}, root);
  const torch::NoGradGuard no_grad;
  if (dense.data_ptr() != tensor.data_ptr()) torch::Tensor(tensor).copy_(dense);
}

void broadcast_optimizer(Communicator& world, torch::optim::Optimizer& optimizer, Rank root) {
  // An optimizer's own archive has its state and not its options.
  const auto key = [](std::size_t group) { return "group" + std::to_string(group); };
  std::vector<torch::optim::OptimizerParamGroup>& groups = optimizer.param_groups();
  std::string text;
  if (world.rank() == root) {
    torch::serialize::OutputArchive state;
    optimizer.save(state);
    torch::serialize::OutputArchive all;
    all.write("state", state);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      torch::serialize::OutputArchive options;
      groups[i].options().serialize(options);
      all.write(key(i), options);
    }
    std::ostringstream out;
    all.save_to(out);
    text = out.str();
  }
  std::vector<std::int64_t> length{static_cast<std::int64_t>(text.size())};
  broadcast(world, length, {.root = root});
  text.resize(static_cast<std::size_t>(length.front()));
  broadcast_bytes(world, std::as_writable_bytes(std::span(text)), root);
  if (world.rank() == root) return;
  std::istringstream in(text);
  torch::serialize::InputArchive all;
  all.load_from(in);
  torch::serialize::InputArchive state;
  all.read("state", state);
  optimizer.load(state);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    torch::serialize::InputArchive options;
    all.read(key(i), options);
    groups[i].options().serialize(options);
  }
}

void refuse_other_modules(Communicator& world, const torch::nn::Module& module,
                          const std::vector<AgreedOption>& options) {
  const std::vector<Entry> mine = entries_of(module, options);
  std::string text;
  for (const Entry& entry : mine) text += entry.name + '\n' + entry.what + '\n';
  const std::vector<std::string> texts = gather_texts(world, text);
  const auto parsed = [](const std::string& from) {
    std::istringstream lines(from);
    std::vector<Entry> entries;
    for (Entry entry; std::getline(lines, entry.name) && std::getline(lines, entry.what);) entries.push_back(entry);
    return entries;
  };
  const std::vector<Entry> first = parsed(texts.front());
  std::vector<Rank> ranks;
  std::string message;
  for (Rank rank : all_ranks(world.size())) {
    const std::string difference = first_difference(first, parsed(texts[static_cast<std::size_t>(rank.value)]), rank);
    if (difference.empty()) continue;
    ranks.push_back(rank);
    if (message.empty()) message = difference;
  }
  if (!ranks.empty()) throw PeerError({FailureKind::disagreement, ranks, "the ranks differ: " + message});
}

}  // namespace tutti::detail
