#include <tutti/sync/gradient_compressor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/compression.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/sync/compression_plan.hpp>

namespace tutti {
namespace {

using Piece = GradientBuffers::Piece;

template <typename T>
std::span<T> elements(Array array) {
  return {reinterpret_cast<T*>(array.data()), array.length()};
}

template <typename T>
std::span<T> part(std::span<T> array, Slice slice) {
  return array.subspan(slice.first, slice.count);
}

template <typename T>
bool is_finite(T value) {
  return value - value == T{0};
}

// All of it was sent.
template <typename T>
void clear_finite(T& left) {
  if (is_finite(left)) left = T{0};
}

// "3.9 MiB", "60 MiB".
std::string rounded(Bytes bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  std::string text = fmt::format("{:.{}f}", value, value < 100 ? 1 : 0);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return fmt::format("{} {}", text, kUnits[unit]);
}

// --- 16 bits ---

// The largest value of which as many as there are workers can be added up in the 16-bit type, in any order, without
// reaching infinity on the way. It has so few bits that all these sums are exact.
double largest_summand(DataType half, int workers) {
  const int digits = half == DataType::float16 ? 11 : 8;
  const double largest = half == DataType::float16 ? 65504 : static_cast<double>(bfloat16{0x7f7f}.to_float());
  const auto count = static_cast<unsigned>(workers);
  int bits = digits - static_cast<int>(std::bit_width(count - 1));
  double share = largest / workers;
  if (bits < 1) {  // sums are rounded then: a little each, and half is enough room for it
    bits = 1;
    share /= 2;
  }
  int exponent = 0;
  std::frexp(share, &exponent);
  const double unit = std::ldexp(1.0, exponent - bits);
  return std::floor(share / unit) * unit;
}

// --- TopK: a message is indices and values of one piece after the other, in words of four bytes ---

using Word = std::int32_t;

template <typename T>
constexpr std::size_t kWordsEach = 1 + sizeof(T) / sizeof(Word);

template <typename T>
Word* write(const BasicSparseGradient<T>& sparse, Word* to) {
  const std::size_t count = sparse.indices.size();
  if (count == 0) return to;
  std::memcpy(to, sparse.indices.data(), count * sizeof(Word));
  std::memcpy(to + count, sparse.values.data(), count * sizeof(T));
  return to + count * kWordsEach<T>;
}

template <typename T>
const Word* read(const Word* from, std::size_t count, BasicSparseGradient<T>& sparse) {
  sparse.indices.resize(count);
  sparse.values.resize(count);
  if (count == 0) return from;
  std::memcpy(sparse.indices.data(), from, count * sizeof(Word));
  std::memcpy(sparse.values.data(), from + count, count * sizeof(T));
  return from + count * kWordsEach<T>;
}

std::vector<GradientShape> shapes_of(const GradientBuffers& gradients) {
  std::vector<GradientShape> shapes;
  for (const Piece& piece : gradients.pieces()) shapes.push_back(piece.shape);
  return shapes;
}

// FNV-1a: the same on every platform.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

// What a worker brings, in three numbers that all compare. The first is 0 where it cannot take part.
struct Brought {
  std::int64_t signature = 0;
  std::int64_t pieces = 0;
  std::int64_t elements = 0;

  friend bool operator==(const Brought&, const Brought&) = default;
};

Brought brought_by(const GradientBuffers& gradients, const Compression& compression) {
  std::string text = fmt::format("{} {}", to_string(compression), to_string(gradients.type()));
  for (const Piece& piece : gradients.pieces())
    text += fmt::format("\n{}\n{}", piece.name, fmt::join(piece.shape, ","));
  return {.signature = static_cast<std::int64_t>(hash_of(text) | 1),
          .pieces = static_cast<std::int64_t>(gradients.pieces().size()),
          .elements = static_cast<std::int64_t>(gradients.all().length())};
}

std::vector<Brought> brought_by_all(Communicator& world, const Brought& mine) {
  constexpr std::size_t kNumbers = 3;
  const std::array<std::int64_t, kNumbers> numbers{mine.signature, mine.pieces, mine.elements};
  std::vector<std::int64_t> all(kNumbers * static_cast<std::size_t>(world.size()));
  all_gather(world, numbers, all);
  std::vector<Brought> result;
  for (std::size_t i = 0; i < all.size(); i += kNumbers) result.push_back({all[i], all[i + 1], all[i + 2]});
  return result;
}

// Told by those whom most agree with.
[[noreturn]] void refuse_disagreement(const std::vector<Brought>& all) {
  std::vector<Rank> unable;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].signature == 0) unable.push_back(Rank{static_cast<int>(i)});
  }
  if (!unable.empty()) {
    throw PeerError(
        {FailureKind::disagreement, unable,
         fmt::format("{} brought gradients that cannot be compressed, and nothing was exchanged", to_string(unable))});
  }
  const auto usual =
      std::ranges::max_element(all, {}, [&](const Brought& one) { return std::ranges::count(all, one); });
  std::vector<Rank> others;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!(all[i] == *usual)) others.push_back(Rank{static_cast<int>(i)});
  }
  const Brought& other = all[static_cast<std::size_t>(others.front().value)];
  const bool is_named_otherwise = other.pieces == usual->pieces && other.elements == usual->elements;
  throw PeerError(
      {FailureKind::disagreement, others,
       is_named_otherwise
           ? fmt::format(
                 "{} brought gradients of other names, shapes or types than the rest, or compresses them otherwise",
                 to_string(others))
           : fmt::format("{} brought {} elements in {} gradients, and the others {} in {}", to_string(others),
                         other.elements, other.pieces, usual->elements, usual->pieces)});
}

}  // namespace

std::string CompressionTally::line() const {
  std::string text = fmt::format("{} sent {} instead of {}", to_string(compression), rounded(sent), rounded(gradients));
  if (gradients.value > 0) {
    text += fmt::format(" ({:.1f} %)", 100 * static_cast<double>(sent.value) / static_cast<double>(gradients.value));
  }
  return text;
}

GradientCompressor::GradientCompressor(const Compression& compression, const GradientCompressorOptions& options)
    : compression_(compression), options_(options) {
  validate(compression_);
  validate(options_.algorithm);
}

void GradientCompressor::mean(Communicator& world, GradientBuffers& gradients) {
  try {
    exchange(world, gradients);
  } catch (...) {
    forget();
    throw;
  }
  keep();
}

void GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients) {
  try {
    refuse_other_pieces(gradients);
  } catch (const UsageError&) {
    refuse(world);
    throw;
  }
  const std::vector<Brought> all = brought_by_all(world, brought_by(gradients, compression_));
  if (std::ranges::adjacent_find(all, std::not_equal_to{}) != all.end()) refuse_disagreement(all);
  const std::size_t sent = std::visit(
      [&](const auto& compression) {
        return gradients.type() == DataType::float32 ? exchange_as<float>(world, gradients, compression)
                                                     : exchange_as<double>(world, gradients, compression);
      },
      compression_);
  staged_gradient_bytes_.value += gradients.all().bytes();
  staged_sent_bytes_.value += sent;
}

void GradientCompressor::refuse(Communicator& world) { brought_by_all(world, {}); }

void GradientCompressor::keep() {
  for (auto& [name, values] : staged_.remains) state_.remains.insert_or_assign(name, std::move(values));
  for (auto& [name, values] : staged_.factors) state_.factors.insert_or_assign(name, std::move(values));
  gradient_bytes_.value += staged_gradient_bytes_.value;
  sent_bytes_.value += staged_sent_bytes_.value;
  forget();
}

void GradientCompressor::forget(const std::string& piece) {
  staged_.remains.erase(piece);
  staged_.factors.erase(piece);
}

void GradientCompressor::forget() {
  staged_ = {};
  staged_gradient_bytes_ = staged_sent_bytes_ = {};
}

void GradientCompressor::restore(CompressorState state) {
  for (const auto& [name, values] : state.remains) {
    const bool all_finite = std::visit(
        [](const auto& its) { return std::ranges::all_of(its, [](auto value) { return is_finite(value); }); }, values);
    if (!all_finite) throw UsageError(fmt::format("what remains of the gradient '{}' is infinite or no number", name));
  }
  state_ = std::move(state);
}

void GradientCompressor::all_reduce_mean(Communicator& world, Array array) const {
  all_reduce(world, array,
             {.algorithm = options_.algorithm, .op = ReduceOp::mean, .reproducible = options_.reproducible});
}

void GradientCompressor::refuse_other_pieces(const GradientBuffers& gradients) const {
  for (const Piece& piece : gradients.pieces()) {
    const auto at = state_.remains.find(piece.name);
    if (at == state_.remains.end()) continue;
    const auto [before, type] =
        std::visit([]<typename Before>(
                       const std::vector<Before>& values) { return std::pair(values.size(), data_type_of<Before>); },
                   at->second);
    if (before != piece.slice.count || type != gradients.type()) {
      throw UsageError(fmt::format("the gradient '{}' had {} elements of {} before, found {} of {}", piece.name, before,
                                   to_string(type), piece.slice.count, to_string(gradients.type())));
    }
  }
}

template <typename T>
std::vector<const std::vector<T>*> GradientCompressor::remains_of(const GradientBuffers& gradients) {
  std::size_t longest = 0;
  for (const Piece& piece : gradients.pieces()) longest = std::max(longest, piece.slice.count);
  const auto* zeros = std::get_if<std::vector<T>>(&zeros_);
  if (zeros == nullptr || zeros->size() < longest) zeros = &zeros_.emplace<std::vector<T>>(longest);
  std::vector<const std::vector<T>*> result;
  for (const Piece& piece : gradients.pieces()) {
    const auto at = state_.remains.find(piece.name);
    result.push_back(at == state_.remains.end() ? zeros : &std::get<std::vector<T>>(at->second));
  }
  return result;
}

template <typename T>
void GradientCompressor::stage(const GradientBuffers& gradients, std::span<const T> left,
                               const std::vector<const std::vector<T>*>& remains) {
  for (std::size_t index = 0; index < remains.size(); ++index) {
    const Piece& piece = gradients.pieces()[index];
    const std::span<const T> its = part(left, piece.slice);
    std::vector<T> next(its.begin(), its.end());
    for (std::size_t i = 0; i < next.size(); ++i) next[i] = is_finite(next[i]) ? next[i] : (*remains[index])[i];
    staged_.remains.insert_or_assign(piece.name, std::move(next));
  }
}

template <typename T>
std::span<T> GradientCompressor::whole(const GradientBuffers& gradients,
                                       const std::vector<const std::vector<T>*>& remains) {
  constexpr T kLargest = std::numeric_limits<T>::max();
  const std::span<T> result = whole_.of<T>(gradients.all().length());
  for (std::size_t index = 0; index < remains.size(); ++index) {
    const Slice slice = gradients.pieces()[index].slice;
    const T* gradient = elements<T>(gradients[index]).data();
    const T* kept = remains[index]->data();
    T* sum = result.data() + slice.first;
    for (std::size_t i = 0; i < slice.count; ++i) {
      const T clamped = std::clamp(gradient[i] + kept[i], -kLargest, kLargest);
      sum[i] = is_finite(gradient[i]) ? clamped : gradient[i];
    }
  }
  return result;
}

template <typename T>
std::size_t GradientCompressor::exchange_as(Communicator& world, GradientBuffers& gradients, const NoCompression&) {
  all_reduce_mean(world, gradients.all());
  return gradients.all().bytes();
}

template <typename T>
std::size_t GradientCompressor::exchange_as(Communicator& world, GradientBuffers& gradients, const Float16&) {
  return exchange_halves<T>(world, gradients, DataType::float16);
}

template <typename T>
std::size_t GradientCompressor::exchange_as(Communicator& world, GradientBuffers& gradients, const BFloat16&) {
  return exchange_halves<T>(world, gradients, DataType::bfloat16);
}

template <typename T>
std::size_t GradientCompressor::exchange_halves(Communicator& world, GradientBuffers& gradients, DataType half) {
  const std::vector<const std::vector<T>*> remains = remains_of<T>(gradients);
  const std::size_t length = gradients.all().length();
  const std::span<T> left = whole_.of<T>(length);
  const Array sent(sent_.of<std::uint16_t>(length).data(), length, half);
  const double most = largest_summand(half, world.size());
  for (std::size_t index = 0; index < remains.size(); ++index) {
    const Slice slice = gradients.pieces()[index].slice;
    narrow({.gradients = gradients[index],
            .remains = std::span(*remains[index]).first(slice.count),
            .sent = sent.slice(slice.first, slice.count),
            .left = part(left, slice)},
           most);
  }
  all_reduce_mean(world, sent);

  convert(sent, gradients.all());
  stage<T>(gradients, left, remains);
  return sent.bytes();
}

template <typename T>
std::size_t GradientCompressor::exchange_as(Communicator& world, GradientBuffers& gradients, const TopK& top_k) {
  const std::vector<const std::vector<T>*> remains = remains_of<T>(gradients);
  const std::span<T> left = whole(gradients, remains);
  std::size_t words = 0;
  for (const Piece& piece : gradients.pieces()) words += top_k_count(top_k, piece.slice.count) * kWordsEach<T>;
  const std::span<Word> sent = sent_.of<Word>(words);
  Word* end = sent.data();
  for (const Piece& piece : gradients.pieces()) {
    const std::span<T> values = part(left, piece.slice);
    const auto largest = tutti::top_k(std::span<const T>(values), top_k_count(top_k, values.size()));
    end = write(largest, end);
    for (const std::uint32_t index : largest.indices) clear_finite(values[index]);
  }
  const std::span<Word> received = received_.of<Word>(words * static_cast<std::size_t>(world.size()));
  all_gather(world, sent, received);

  const std::span<T> mean = elements<T>(gradients.all());
  std::ranges::fill(mean, T{0});
  const Word* from = received.data();
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const Piece& piece : gradients.pieces()) {
      BasicSparseGradient<T> sparse{.indices = {}, .values = {}, .original_len = piece.slice.count};
      from = read(from, top_k_count(top_k, piece.slice.count), sparse);
      add_to(part(mean, piece.slice), sparse);
    }
  }
  divide(data_type_of<T>, mean.data(), mean.size(), world.size());
  stage<T>(gradients, left, remains);
  return sent.size_bytes();
}

template <typename T>
void GradientCompressor::fill_factor(const std::string& name, std::span<T> q, std::size_t columns) const {
  const auto found = state_.factors.find(name);
  const auto* kept = found == state_.factors.end() ? nullptr : std::get_if<std::vector<T>>(&found->second);
  if (kept != nullptr && kept->size() == q.size())
    std::ranges::copy(*kept, q.begin());
  else
    std::ranges::fill(q, T{0});
  // A column of zeros would stay one for ever: where a gradient has had a lower rank so far, or none was seen yet.
  for (std::size_t column = 0; column < q.size() / columns; ++column) {
    const std::span<T> values = q.subspan(column * columns, columns);
    if (std::ranges::any_of(values, [](T value) { return value != T{0}; })) continue;
    RandomStream draws({options_.seed, hash_of(name), column});
    for (T& value : values) value = static_cast<T>(draws.normal());
  }
}

template <typename T>
std::size_t GradientCompressor::exchange_as(Communicator& world, GradientBuffers& gradients,
                                            const PowerSgd& power_sgd) {
  const std::vector<const std::vector<T>*> remains = remains_of<T>(gradients);
  const std::span<T> left = whole(gradients, remains);
  const LowRankPlan plan = low_rank_plan(power_sgd, shapes_of(gradients));
  const std::span<T> first = sent_.of<T>(plan.first_length);
  const std::span<T> second = received_.of<T>(plan.second_length);
  const auto for_each_piece = [&](auto f) {
    for (std::size_t index = 0; index < plan.pieces.size(); ++index) {
      const LowRankPiece& planned = plan.pieces[index];
      const Piece& piece = gradients.pieces()[index];
      f(planned, piece, part(left, piece.slice), part(first, planned.first), part(second, planned.second));
    }
  };

  for_each_piece([&](const LowRankPiece& planned, const Piece& piece, std::span<T> m, std::span<T> p, std::span<T> q) {
    if (planned.is_matrix) {
      fill_factor(piece.name, q, planned.shape.columns);
      matrix_times<T>(m, planned.shape, q, p);
    } else {
      std::ranges::copy(m, p.begin());
      std::ranges::for_each(m, clear_finite<T>);
    }
  });
  all_reduce_mean(world, first);

  for_each_piece([&](const LowRankPiece& planned, const Piece&, std::span<T> m, std::span<T> p, std::span<T> q) {
    if (!planned.is_matrix) return;
    orthonormalise(p, planned.shape.rows);
    transposed_times<T>(m, planned.shape, p, q);
    subtract_outer_product<T>(p, planned.shape, q, m);
  });
  all_reduce_mean(world, second);

  const std::span<T> mean = elements<T>(gradients.all());
  for_each_piece([&](const LowRankPiece& planned, const Piece& piece, std::span<T>, std::span<T> p, std::span<T> q) {
    if (!planned.is_matrix) {
      std::ranges::copy(p, mean.begin() + static_cast<std::ptrdiff_t>(piece.slice.first));
      return;
    }
    outer_product<T>(p, planned.shape, q, part(mean, piece.slice));
    if (std::ranges::all_of(q, is_finite<T>))
      staged_.factors.insert_or_assign(piece.name, std::vector<T>(q.begin(), q.end()));
  });
  stage<T>(gradients, left, remains);
  return first.size_bytes() + second.size_bytes();
}

}  // namespace tutti
